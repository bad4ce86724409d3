/// \file
/// Tenants that share a GPU, on the GPU: residual data, the speed of wiping, and whether one tenant at its limit is felt by
/// another.
///
///     cuda_tenancy [handovers] [pairs]       10 000 handovers (0: none) and 20 000 pairs if not told
///
/// Each check prints PASS or FAIL, each figure a line of its own.

#include <tenure/device/cuda_device.hpp>
#include <tenure/policy.hpp>
#include <tenure/tenancy.hpp>

#include "cuda/check.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sched.h>

namespace {

using namespace tenure::literals;
using tenure::status;
using tenure::stream_handle;
using gpu = tenure::cuda::device;
using gpu_hub = tenure::hub<gpu>;
using clock_type = std::chrono::steady_clock;

__global__ void fill(unsigned* p, std::size_t words, unsigned pattern) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < words;
         i += std::size_t{gridDim.x} * blockDim.x)
        p[i] = pattern;
}

/// Counts the words that another tenant has written.
__global__ void look_for(const unsigned* p, std::size_t words, unsigned pattern, unsigned long long* found) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < words;
         i += std::size_t{gridDim.x} * blockDim.x)
        if (p[i] == pattern) atomicAdd(found, 1ull);
}

bool say(const char* what, bool good) {
    std::printf("%s %s\n", good ? "PASS" : "FAIL", what);
    if (!good) ++tenure::test::failed_checks;
    return good;
}

double seconds_since(clock_type::time_point begin) {
    return std::chrono::duration<double>(clock_type::now() - begin).count();
}

std::unique_ptr<gpu> open_or_skip() {
    try {
        return std::make_unique<gpu>();
    } catch (const tenure::driver_error& e) {
        if (e.code() != status::no_device) throw;
        tenure::test::skip(e.what());
    }
}

struct streams {
    streams() {
        TENURE_REQUIRE(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking) == cudaSuccess);
        TENURE_REQUIRE(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking) == cudaSuccess);
    }
    ~streams() {
        (void)cudaStreamDestroy(a);
        (void)cudaStreamDestroy(b);
    }
    cudaStream_t a{};
    cudaStream_t b{};
};

/// Two tenants hand the same memory to and fro: one writes its pattern and gives everything back, the other takes and looks
/// for that pattern. Returns: words of the other that a tenant has read.
struct handover_result {
    unsigned long long residual = 0;
    std::size_t handovers = 0;
    std::size_t crossed = 0;
    std::size_t scrubbed = 0;
    double seconds = 0;
};

template <template <class> class Policy>
handover_result hand_over(gpu& device, tenure::scrub how, int rounds, const streams& s) {
    using arena = tenure::arena<Policy, gpu_hub>;
    handover_result result;
    gpu_hub hub(device, {.wipe = how});
    tenure::arena_group root({.name = "gpu", .max = 512_MiB});
    // Not larger than one of them needs: what a tenant takes must be what the other gave.
    arena first(root, hub, {.name = "first", .max = 256_MiB});
    arena second(root, hub, {.name = "second", .max = 256_MiB});
    unsigned long long* found = nullptr;
    TENURE_REQUIRE(cudaMallocManaged(&found, sizeof *found) == cudaSuccess);
    *found = 0;
    const std::size_t sizes[] = {1_MiB, 2_MiB, 3_MiB + 512, 20_MiB, 64_KiB, 8_MiB};
    const auto begin = clock_type::now();
    for (int i = 0; i < rounds; ++i) {
        arena& mine = i % 2 == 0 ? first : second;
        const cudaStream_t on = i % 2 == 0 ? s.a : s.b;
        const unsigned pattern = i % 2 == 0 ? 0xA11CE000u : 0xB0B00000u;
        const unsigned others = i % 2 == 0 ? 0xB0B00000u : 0xA11CE000u;
        const std::size_t n = sizes[static_cast<std::size_t>(i / 2) % std::size(sizes)];
        auto* const p = static_cast<unsigned*>(mine.allocate(on, n));
        look_for<<<64, 256, 0, on>>>(p, n / 4, others, found);
        fill<<<64, 256, 0, on>>>(p, n / 4, pattern);
        mine.deallocate(on, p, n);
        // Kernels may still run here for policies that give back behind an event; those that need it wait.
        if (i % 16 == 15) TENURE_REQUIRE(cudaStreamSynchronize(on) == cudaSuccess);
        mine.trim(0);
        if (mine.limits().own != 0) { // its last free is not settled yet
            TENURE_REQUIRE(cudaStreamSynchronize(on) == cudaSuccess);
            mine.trim(0);
        }
        ++result.handovers;
    }
    TENURE_REQUIRE(cudaStreamSynchronize(s.a) == cudaSuccess && cudaStreamSynchronize(s.b) == cudaSuccess);
    result.seconds = seconds_since(begin);
    result.residual = *found;
    result.crossed = hub.read().crossed;
    result.scrubbed = hub.read().scrubbed;
    TENURE_REQUIRE(cudaFree(found) == cudaSuccess);
    return result;
}

template <template <class> class Policy>
void check_residue(gpu& device, const char* policy, int rounds, const streams& s, bool through_hub = true) {
    for (const tenure::scrub how : {tenure::scrub::on_transfer, tenure::scrub::on_free}) {
        const char* const when = how == tenure::scrub::on_transfer ? "on_transfer" : "on_free";
        const handover_result r = hand_over<Policy>(device, how, rounds, s);
        const std::string name = std::string("residue/") + policy + "/" + when;
        say(name.c_str(), r.residual == 0);
        std::printf(
            "     %zu handovers, %.1f us each, %.1f GiB crossed, %.1f GiB wiped, %llu residual words\n",
            r.handovers, r.seconds * 1e6 / static_cast<double>(r.handovers),
            static_cast<double>(r.crossed) / (1 << 30), static_cast<double>(r.scrubbed) / (1 << 30),
            r.residual);
        if (through_hub) say((name + "/something_was_wiped").c_str(), r.scrubbed != 0);
    }
    if (!through_hub) return;
    // The check can see what it looks for: without wiping it finds residue.
    const handover_result bare = hand_over<Policy>(device, tenure::scrub::none, std::min(rounds, 200), s);
    say((std::string("residue/") + policy + "/none_is_seen").c_str(), bare.residual != 0);
}

/// Bytes a second of wiping against memset of the same memory.
void check_scrub_speed(gpu& device) {
    tenure::meter alice("alice", tenure::no_limit);
    tenure::meter bob("bob", tenure::no_limit);
    for (const std::size_t n : {2_MiB, 64_MiB, 1_GiB, 8_GiB}) {
        gpu_hub hub(device);
        double scrub_time = 1e9;
        double plain_time = 1e9;
        double set_time = 1e9;
        for (int round = 0; round < 5; ++round) {
            const auto a = hub.allocate(n, alice);
            TENURE_REQUIRE(a);
            TENURE_REQUIRE(hub.deallocate(*a, n) == status::ok);
            auto begin = clock_type::now();
            const auto own = hub.allocate(n, alice);
            plain_time = std::min(plain_time, seconds_since(begin));
            TENURE_REQUIRE(own);
            TENURE_REQUIRE(hub.deallocate(*own, n) == status::ok);
            begin = clock_type::now();
            const auto b = hub.allocate(n, bob);
            scrub_time = std::min(scrub_time, seconds_since(begin));
            TENURE_REQUIRE(b);
            const stream_handle on = *device.own_stream();
            begin = clock_type::now();
            TENURE_REQUIRE(cudaMemsetAsync(*b, 0, n, on) == cudaSuccess);
            TENURE_REQUIRE(cudaStreamSynchronize(on) == cudaSuccess);
            set_time = std::min(set_time, seconds_since(begin));
            TENURE_REQUIRE(hub.deallocate(*b, n) == status::ok);
            (void)hub.trim(0);
        }
        const auto rate = [n](double t) { return static_cast<double>(n) / t / 1e12; };
        std::printf("     scrub %zu MiB: crossing %.1f us (%.2f TB/s), memset and wait %.1f us (%.2f TB/s), "
                    "own memory "
                    "again %.2f us\n",
                    n >> 20, scrub_time * 1e6, rate(scrub_time), set_time * 1e6, rate(set_time),
                    plain_time * 1e6);
        if (n >= 1_GiB) say("scrub/no_slower_than_memset_by_a_tenth", scrub_time < set_time * 1.1);
    }
}

/// Returns: the q-th part of the values in their order. Effects: reorders them. Requires: there are some.
double quantile(std::vector<double>& values, double q) {
    const auto at = values.begin() + static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1));
    std::nth_element(values.begin(), at, values.end());
    return *at;
}

/// Allocates and frees 1 to 16 times `unit` bytes in turns. Returns: nanoseconds of each allocation. Some pairs before are not
/// counted: waking a neighbour has emptied this core's caches. A function of its own, with a stack frame of its own.
template <class Arena>
[[gnu::noinline]] std::vector<double> quiet(Arena& a, cudaStream_t s, std::size_t unit, int pairs) {
    constexpr int warm = 512;
    std::vector<double> ns;
    ns.reserve(static_cast<std::size_t>(pairs));
    for (int i = -warm; i < pairs; ++i) {
        const std::size_t n = (static_cast<std::size_t>(i + warm) % 16 + 1) * unit;
        const auto begin = clock_type::now();
        void* const p = a.allocate(s, n);
        const double took = std::chrono::duration<double, std::nano>(clock_type::now() - begin).count();
        a.deallocate(s, p, n);
        if (i >= 0) ns.push_back(took);
    }
    return ns;
}

/// Effects: this thread runs on that core only, if the machine allows.
void stay_on(int core) {
    cpu_set_t only;
    CPU_ZERO(&only);
    if (core < 0) return;
    CPU_SET(core, &only);
    (void)sched_setaffinity(0, sizeof only, &only);
}

/// Two cores that this process may use, for each n others where there are enough; not two names of one core as far as the machine
/// tells, which a virtual one may not. -1 where there are none.
struct two_cores {
    explicit two_cores(std::size_t n) {
        cpu_set_t allowed;
        CPU_ZERO(&allowed);
        if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
        std::set<int> first_names;
        std::vector<int> all; // one name of each
        for (int core = 0; core < CPU_SETSIZE; ++core)
            if (CPU_ISSET(core, &allowed) && first_names.insert(first_name_of(core)).second)
                all.push_back(core);
        if (all.size() < 2) return;
        mine = all[n % all.size()];
        others = all[(n + all.size() / 2) % all.size()];
    }
    static int first_name_of(int core) {
        std::ifstream names("/sys/devices/system/cpu/cpu" + std::to_string(core) +
                            "/topology/thread_siblings_list");
        int first = core;
        return names >> first ? first : core;
    }
    int mine = -1;
    int others = -1;
};

/// One at its limit: fills it, is refused, gives a half back, and so on. What it writes has lines of the cache to itself: beside
/// what the quiet one uses on its stack it would be felt, and be this program's fault.
template <class Arena>
class alignas(tenure::own_lines) hammering {
  public:
    hammering(Arena& a, cudaStream_t s) : arena_(&a), stream_(s) {}
    /// Returns: whether it was refused.
    bool operator()() {
        if (const auto r = arena_->try_allocate(stream_, block)) {
            held_.push_back(*r);
            return false;
        }
        give_back(held_.size() / 2);
        return true;
    }
    void give_back(std::size_t n) {
        for (; n > 0; --n) {
            arena_->deallocate(stream_, held_.back(), block);
            held_.pop_back();
        }
    }
    void give_all_back() { give_back(held_.size()); }

  private:
    static constexpr std::size_t block = 32_MiB;
    Arena* arena_;
    cudaStream_t stream_;
    tenure::own_lines_vector<void*> held_;
};

/// A thread that does one thing again and again while it is told to, and sleeps otherwise. It looks at every turn whether it
/// should, so this has lines of the cache to itself, too.
class alignas(tenure::own_lines) neighbour {
  public:
    /// `work()`: one turn; returns whether it has got as far as it should be seen.
    template <class Work>
    neighbour(int core, Work work)
        : thread_([this, core, work = std::move(work)]() mutable {
            stay_on(core);
            while (true) {
                {
                    std::unique_lock lock(mutex_);
                    asleep_ = true;
                    changed_.wait(lock, [this] { return busy_ || stop_; });
                    asleep_ = false;
                    if (stop_) return;
                }
                while (busy_)
                    if (work()) ++seen_;
            }
        }) {}
    ~neighbour() {
        set(false, true);
        thread_.join();
    }
    /// Effects: returns when it has been seen at its work.
    void begin() {
        const std::size_t before = seen_;
        set(true, false);
        while (seen_ == before) std::this_thread::yield();
    }
    /// Effects: returns when it has left its work.
    void end() {
        set(false, false);
        while (!asleep_) std::this_thread::yield();
    }
    [[nodiscard]] std::size_t seen() const { return seen_; }

  private:
    void set(bool busy, bool stop) {
        const std::lock_guard lock(mutex_);
        busy_ = busy;
        stop_ = stop;
        changed_.notify_one();
    }
    std::mutex mutex_;
    std::condition_variable changed_;
    std::atomic<bool> busy_{false};
    std::atomic<bool> asleep_{false};
    bool stop_ = false;
    std::atomic<std::size_t> seen_{0};
    std::thread thread_; ///< last: it uses the rest
};

/// Of the 99th percentiles of rounds that stood side by side, the median of the ratios to alone.
struct beside {
    double control;  ///< beside one that shares nothing
    double at_limit; ///< beside one at its limit in the same tree
    bool refused;    ///< the quiet one was
};

/// Short rounds take turns, so that what the machine does over time falls on all alike: alone, beside one that does the same with a
/// pool of its own, in another tree, on another hub and device, and beside one at its limit in the same tree.
template <template <class> class Policy>
beside measure_beside(gpu& device, const std::string& what, std::size_t n, std::size_t unit, int pairs,
                      const streams& s) {
    using arena = tenure::arena<Policy, gpu_hub>;
    constexpr int rounds = 120;
    constexpr std::size_t kinds = 3;
    const int allocations = std::max(pairs / 8, 200);
    const std::vector<char> shift(n * 1000 + 16); // what comes after it lies elsewhere in each set-up
    gpu_hub hub(device);
    gpu other_device;
    gpu_hub other_hub(other_device);
    tenure::arena_group root({.name = "gpu", .max = 4_GiB});
    tenure::arena_group other_root({.name = "other", .max = 4_GiB});
    arena calm(root, hub, {.name = "calm", .min = 256_MiB, .max = 1_GiB});
    arena loud(root, hub, {.name = "loud", .max = 1_GiB});
    arena apart(other_root, other_hub, {.name = "apart", .max = 1_GiB});
    hammering at_limit(loud, s.b);
    hammering elsewhere(apart, s.b);
    std::vector<double> all[kinds];
    std::vector<double> p99[kinds];
    std::size_t refusals = 0;
    const two_cores cores(n);
    cpu_set_t before;
    CPU_ZERO(&before);
    (void)sched_getaffinity(0, sizeof before, &before);
    stay_on(cores.mine);
    {
        neighbour at_limit_in_thread(cores.others, [&] { return at_limit(); });
        neighbour elsewhere_in_thread(cores.others, [&] { return elsewhere(); });
        neighbour* const others[kinds] = {nullptr, &elsewhere_in_thread, &at_limit_in_thread};
        (void)quiet(calm, s.a, unit, 2000); // warm
        for (int round = 0; round < rounds; ++round)
            for (std::size_t turn = 0; turn < kinds; ++turn) {
                const std::size_t kind = (turn + static_cast<std::size_t>(round)) % kinds;
                if (others[kind] != nullptr) others[kind]->begin();
                std::vector<double> ns = quiet(calm, s.a, unit, allocations);
                if (others[kind] != nullptr) others[kind]->end();
                all[kind].insert(all[kind].end(), ns.begin(), ns.end());
                p99[kind].push_back(quantile(ns, 0.99));
            }
        refusals = at_limit_in_thread.seen();
    }
    (void)sched_setaffinity(0, sizeof before, &before);
    at_limit.give_all_back();
    elsewhere.give_all_back();
    const auto median_ratio = [&](std::size_t kind) {
        std::vector<double> ratios;
        for (std::size_t r = 0; r < p99[0].size(); ++r) ratios.push_back(p99[kind][r] / p99[0][r]);
        return quantile(ratios, 0.5);
    };
    const beside result{median_ratio(1), median_ratio(2), calm.limits().refused != 0};
    std::printf("     %s, set-up %zu, cores %d and %d: p50 / p99 / p99.9", what.c_str(), n, cores.mine,
                cores.others);
    const char* const names[kinds] = {"alone", "beside the same with nothing shared",
                                      "beside one at its limit"};
    for (std::size_t k = 0; k < kinds; ++k)
        std::printf("%s %s %.0f / %.0f / %.0f ns", k == 0 ? "" : ",", names[k], quantile(all[k], 0.5),
                    quantile(all[k], 0.99), quantile(all[k], 0.999));
    std::printf("; p99 of rounds against alone %.3f and %.3f; %zu refusals\n", result.control,
                result.at_limit, refusals);
    return result;
}

/// What a neighbour at its limit costs a quiet tenant: the median of five set-ups, as where the pools of one happen to lie, and which
/// cores it runs on, decides nothing alone. A set-up in which one that shares nothing costs more than a tenth shows what the
/// machine's cores do to each other, or the driver, and another takes its place.
template <template <class> class Policy>
void check_neighbours(gpu& device, const std::string& policy, std::size_t unit, int pairs, const streams& s) {
    constexpr std::size_t wanted = 5;
    constexpr std::size_t most = 12;
    const std::string what = "neighbours/" + policy + "/" + std::to_string(unit / 1_KiB) + "_KiB";
    std::vector<double> costs;
    bool refused = false;
    for (std::size_t n = 0; n < most && costs.size() < wanted; ++n) {
        const beside b = measure_beside<Policy>(device, what, n, unit, pairs, s);
        if (b.control <= 1.1) costs.push_back(b.at_limit);
        refused = refused || b.refused;
    }
    const bool enough = costs.size() == wanted;
    if (!enough)
        std::printf("     %s: in only %zu of %zu set-ups one that shares nothing costs nothing\n",
                    what.c_str(), costs.size(), most);
    say((what + "/p99_within_a_tenth").c_str(), enough && quantile(costs, 0.5) <= 1.1);
    say((what + "/the_quiet_one_was_never_refused").c_str(), !refused);
}

/// A guarantee holds against a neighbour that has filled everything else, and idle memory is lent.
void check_limits(gpu& device, const streams& s) {
    gpu_hub hub(device);
    tenure::arena_group root({.name = "gpu", .max = 1_GiB});
    using arena = tenure::arena<tenure::remap_pool, gpu_hub>;
    arena sure(root, hub, {.name = "sure", .min = 300_MiB});
    arena greedy(root, hub, {.name = "greedy"});
    std::vector<void*> held;
    while (const auto r = greedy.try_allocate(s.a, 20_MiB)) held.push_back(*r);
    say("limits/others_stop_before_a_guarantee", root.limits().charged <= 1_GiB);
    const auto r = sure.try_allocate(s.b, 300_MiB);
    say("limits/a_guarantee_is_honoured", r.has_value());
    if (r) sure.deallocate(s.b, *r, 300_MiB);
    const auto over = greedy.try_allocate(s.a, 20_MiB);
    say("limits/the_level_that_refuses_is_named",
        !over && over.error().arena.view() == "gpu" &&
            over.error().cause == tenure::failure_cause::ancestor_limit);
    for (void* p : held) greedy.deallocate(s.a, p, 20_MiB);
    TENURE_REQUIRE(cudaStreamSynchronize(s.a) == cudaSuccess);
    const auto lent = sure.try_allocate(s.b, 900_MiB); // greedy's is idle now
    say("limits/idle_memory_is_lent", lent.has_value() && greedy.limits().reclaimed != 0);
    if (lent) sure.deallocate(s.b, *lent, 900_MiB);
    TENURE_REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    sure.trim(0);
    greedy.trim(0);
    say("limits/everything_comes_back", root.limits().used == 0);
}

/// A block that its owner passes on takes along what is in it, and nothing of what had been around it.
void check_transfer(gpu& device, const streams& s) {
    constexpr unsigned old_bytes = 0xA11CE000u;
    constexpr unsigned passed_on = 0xB0B00000u;
    for (const tenure::scrub how : {tenure::scrub::on_transfer, tenure::scrub::none}) {
        gpu_hub hub(device, {.wipe = how});
        tenure::arena_group root({.name = "gpu", .max = 512_MiB});
        using arena = tenure::arena<tenure::buddy_pool, gpu_hub>;
        arena from(root, hub, {.name = "from"}, {.segment_bytes = 2_MiB});
        arena to(root, hub, {.name = "to"}, {.segment_bytes = 2_MiB});
        unsigned long long* found = nullptr;
        TENURE_REQUIRE(cudaMallocManaged(&found, 2 * sizeof *found) == cudaSuccess);
        found[0] = found[1] = 0;
        auto* const all = static_cast<unsigned*>(from.allocate(s.a, 64_MiB));
        fill<<<64, 256, 0, s.a>>>(all, 64_MiB / 4, old_bytes);
        from.deallocate(s.a, all, 64_MiB);
        auto* const p = static_cast<unsigned*>(from.allocate(s.a, 33_MiB)); // rounded up to all of it
        fill<<<64, 256, 0, s.a>>>(p, 33_MiB / 4, passed_on);
        const bool moved = p == all && from.transfer(p, to).has_value();
        to.deallocate(s.a, p, 33_MiB);
        auto* const now = static_cast<unsigned*>(to.allocate(s.a, 64_MiB));
        look_for<<<64, 256, 0, s.a>>>(now, 64_MiB / 4, old_bytes, found);
        look_for<<<64, 256, 0, s.a>>>(now, 33_MiB / 4, passed_on, found + 1);
        TENURE_REQUIRE(cudaStreamSynchronize(s.a) == cudaSuccess);
        if (how == tenure::scrub::none) {
            say("transfer/without_wiping_the_rest_is_read", moved && now == all && found[0] == 31_MiB / 4);
        } else {
            say("transfer/what_is_in_the_block_goes_along", moved && now == all && found[1] == 33_MiB / 4);
            say("transfer/the_rest_of_its_segment_is_wiped", found[0] == 0);
        }
        to.deallocate(s.a, now, 64_MiB);
        TENURE_REQUIRE(cudaFree(found) == cudaSuccess);
    }
}

/// The scenarios of tests/README.md that a GPU can show with several tenants.
void check_scenarios(gpu& device, const streams& s) {
    {
        gpu_hub hub(device);
        tenure::arena_group root({.name = "gpu", .max = 256_MiB});
        using arena = tenure::arena<tenure::caching_pool, gpu_hub>;
        arena one(root, hub, {.name = "one"});
        arena two(root, hub, {.name = "two", .max = 128_MiB});
        std::atomic<std::size_t> over{0};
        std::vector<std::thread> threads;
        for (int t = 0; t < 4; ++t)
            threads.emplace_back([&, t] {
                arena& mine = t % 2 == 0 ? one : two;
                for (int i = 0; i < 500; ++i) {
                    const std::size_t n = (1 + static_cast<std::size_t>(i * 7 + t) % 12) * 8_MiB;
                    if (const auto r = mine.try_allocate(s.a, n)) mine.deallocate(s.a, *r, n);
                    if (root.limits().charged > 256_MiB || two.limits().charged > 128_MiB) ++over;
                }
            });
        for (auto& t : threads) t.join();
        say("scenario/L1_a_race_at_the_limits_passes_none",
            over == 0 && root.limits().peak <= 256_MiB && two.limits().peak <= 128_MiB);
        one.trim(0);
        two.trim(0);

        void* const p = one.allocate(s.a, 4_MiB);
        const std::size_t used = root.limits().used;
        const auto foreign = two.try_deallocate(s.a, p, 4_MiB);
        say("scenario/L2_another_tenants_pointer_is_named_and_stays",
            !foreign && foreign.error().kind == tenure::misuse_kind::wrong_arena && one.owns(p));
        one.deallocate(s.a, p, 4_MiB);
        const auto again = one.try_deallocate(s.a, p, 4_MiB);
        say("scenario/L3_a_repeated_free_moves_no_counter",
            !again && again.error().kind == tenure::misuse_kind::double_free && root.limits().used == used);

        arena four[] = {{root, hub, {.name = "a", .max = 24_MiB}},
                        {root, hub, {.name = "b", .max = 24_MiB}},
                        {root, hub, {.name = "c", .max = 24_MiB}},
                        {root, hub, {.name = "d", .max = 24_MiB}}};
        bool others = true;
        const auto too_much = four[0].try_allocate(s.a, 30_MiB);
        for (arena& a : four)
            if (const auto r = a.try_allocate(s.a, 20_MiB))
                a.deallocate(s.a, *r, 20_MiB);
            else
                others = false;
        say("scenario/12_only_the_one_that_asks_too_much_fails", !too_much && others);
        const std::string text = too_much ? "" : too_much.error().text();
        say("scenario/34_the_text_names_the_level_and_what_decides",
            text.find("gpu/a") != std::string::npos && text.find("24 MiB") != std::string::npos &&
                text.find("largest free block") != std::string::npos);
    }
    {
        tenure::arena<tenure::caching_pool, gpu> alone(device, {.name = "alone"});
        const auto r = alone.try_allocate(s.a, 1_TiB);
        say("scenario/L5_a_charge_whose_memory_never_came_goes_back",
            !r && r.error().cause == tenure::failure_cause::device && alone.limits().charged == 0);
    }
    {
        tenure::arena<tenure::caching_pool, gpu> small(device, {.name = "small", .max = 80_MiB});
        void* const p = small.allocate(s.a, 60_MiB);
        small.deallocate(s.a, p, 60_MiB);
        const auto larger = small.try_allocate(s.a, 70_MiB);
        say("scenario/6_a_larger_block_replaces_a_smaller_one", larger.has_value());
        if (larger) small.deallocate(s.a, *larger, 70_MiB);
    }
    {
        const auto before = device.memory();
        tenure::arena<tenure::caching_pool, gpu> tight(device, {.name = "tight", .max = 100_MiB});
        std::vector<void*> blocks;
        while (const auto r = tight.try_allocate(s.a, 3_MiB + 100)) blocks.push_back(*r);
        const auto full = device.memory();
        say("scenario/11_what_the_driver_sees_never_passes_max",
            before && full && before->free - full->free <= 100_MiB && !blocks.empty());
        for (void* b : blocks) tight.deallocate(s.a, b, 3_MiB + 100);
    }
}

} // namespace

int main(int argc, char** argv) {
    const int handovers = argc > 1 ? std::atoi(argv[1]) : 10'000;
    const int pairs = argc > 2 ? std::atoi(argv[2]) : 20'000;
    const std::unique_ptr<gpu> device = open_or_skip();
    const auto begin = clock_type::now();
    {
        const streams s;
        check_limits(*device, s);
        check_scenarios(*device, s);
        check_transfer(*device, s);
        if (handovers != 0) {
            check_residue<tenure::best_fit_pool>(*device, "best_fit", handovers, s);
            check_residue<tenure::buddy_pool>(*device, "buddy", handovers, s);
            check_residue<tenure::slab_pool>(*device, "slab", handovers, s);
            check_residue<tenure::caching_pool>(*device, "caching", handovers, s);
            check_residue<tenure::async_pool>(*device, "async", handovers, s, false);
            if (device->supports_vmm()) check_residue<tenure::remap_pool>(*device, "remap", handovers, s);
        }
        check_scrub_speed(*device);
        for (const std::size_t unit : {64_KiB, 1_MiB}) {
            check_neighbours<tenure::best_fit_pool>(*device, "best_fit", unit, pairs, s);
            check_neighbours<tenure::caching_pool>(*device, "caching", unit, pairs, s);
            if (device->supports_vmm())
                check_neighbours<tenure::remap_pool>(*device, "remap", unit, pairs, s);
        }
        TENURE_CHECK(cudaPeekAtLastError() == cudaSuccess);
    }
    std::printf("%.1f s\n", seconds_since(begin));
    return tenure::test::finish("tenancy");
}
