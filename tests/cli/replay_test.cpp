#include "cli/policies.hpp"
#include "cli/replay.hpp"

#include "scratch_file.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

#include <tenure/device/stream_waits.hpp>
#include <tenure/policy/best_fit_pool.hpp>
#include <tenure/policy/remap_pool.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace {

using namespace tenure;
using namespace tenure::cli;
using test::scratch_file;

trace program(const std::string& lines, const std::string& header = "t_us,op,id,bytes,stream") {
    return load_trace(scratch_file(header + "\n" + lines).path());
}

using sound = best_fit_pool<sim::device>;

/// Hands blocks out again while other streams still use them.
struct forgetful : sound {
    using sound::sound;
    void record_use(void*, stream_handle) noexcept {}
};

/// Hands the same block out twice.
struct generous : sound {
    using sound::sound;
    allocate_result try_allocate(stream_handle s, std::size_t n, std::size_t a) noexcept {
        if (given_ == nullptr) given_ = *sound::try_allocate(s, n, a);
        return given_;
    }
    void* given_ = nullptr;
};

/// Does not know its own blocks.
struct estranged : sound {
    using sound::sound;
    deallocate_result try_deallocate(stream_handle, void* p, std::size_t n, std::size_t) noexcept {
        return misuse{.kind = misuse_kind::foreign_pointer, .pointer = p, .bytes = n};
    }
};

/// Gives blocks to whichever stream asks first.
struct hasty : sound {
    using sound::sound;
    allocate_result try_allocate(stream_handle, std::size_t n, std::size_t a) noexcept {
        return sound::try_allocate(default_stream, n, a);
    }
    deallocate_result try_deallocate(stream_handle, void* p, std::size_t n, std::size_t a) noexcept {
        return sound::try_deallocate(default_stream, p, n, a);
    }
};

/// Passes blocks on to any stream that stands behind their free, as far as the program has said so, and to no other. It
/// believes all that is said, so what was said and did not happen is a race that the device finds.
struct trusting : sound {
    explicit trusting(sim::device& device) : sound(device), device_(&device) {}
    ~trusting() {
        for (const kept& f : kept_) deallocate_sync(f.pointer, f.bytes, default_alignment);
    }

    allocate_result try_allocate(stream_handle s, std::size_t n, std::size_t a) noexcept {
        const stream_waits::stream_id id = device_->describe(s)->id;
        const auto fits = [&](const kept& f) {
            return f.bytes == n && (f.stream == id || f.at < device_->waits().before(id, f.stream) ||
                                    f.at < device_->waits().passed(f.stream));
        };
        const auto it = std::find_if(kept_.begin(), kept_.end(), fits);
        if (it == kept_.end()) return sound::try_allocate(s, n, a);
        if (it->stream != id) ++passed_on;
        void* const p = it->pointer;
        kept_.erase(it);
        return p;
    }
    deallocate_result try_deallocate(stream_handle s, void* p, std::size_t n, std::size_t a) noexcept {
        if (used_.erase(p) != 0) return sound::try_deallocate(s, p, n, a);
        kept_.push_back({p, n, device_->describe(s)->id, device_->waits().freed()});
        return freed{};
    }
    void deallocate(stream_handle s, void* p, std::size_t n, std::size_t a) noexcept {
        (void)try_deallocate(s, p, n, a);
    }
    void record_use(void* p, stream_handle s) noexcept {
        used_.insert(p);
        sound::record_use(p, s);
    }
    std::size_t passed_on = 0; ///< blocks, from one stream to another

  private:
    struct kept {
        void* pointer;
        std::size_t bytes;
        stream_waits::stream_id stream;
        stream_waits::stamp at;
    };
    sim::device* device_;
    std::vector<kept> kept_;
    std::set<void*> used_; ///< by other streams than their own, since they were handed out
};

/// Carries a trace out through one pool; `look(pool, machine, world)` sees what has become of them.
template <class R, class Look>
void play_and_look(const trace& t, const Look& look) {
    sim::device device;
    sim_machine machine(device);
    sim_world world(machine, t.streams);
    watcher watch(device, [&] { return machine.allocator_time(); });
    {
        tenants<R> pools;
        pools.push_back(std::make_unique<R>(device));
        play_state state;
        play<R>(t, pools, world, watch, late_free::held, state);
        look(*pools.front(), machine, world);
        unwind<R>(t, pools, world, watch, state);
    }
    world.clear();
    CHECK(device.violations() == std::vector<std::string>{});
    CHECK(device.live_events() == 0);
}

/// A watch that looks into the blocks: what it is told, and when, is what a GPU's verifier builds on.
struct looking : watcher {
    static constexpr bool looks = true;
    using watcher::watcher;

    void allocated(std::uint32_t id, void* p, std::uint64_t bytes, stream_handle s) {
        watcher::allocated(id, p, bytes, s);
        if (p != nullptr) lives[id] = p;
    }
    void used(std::uint32_t id, const void* p, stream_handle s) {
        CHECK(lives.at(id) == p);
        ++uses[id];
        watcher::used(id, p, s);
    }
    void freed(std::uint32_t id, const void* p, stream_handle s) {
        CHECK(lives.at(id) == p);
        lives.erase(id);
        watcher::freed(id, p, s);
    }
    std::map<std::uint32_t, const void*> lives;
    std::map<std::uint32_t, int> uses;
};

template <class R>
replay_result run(const trace& t, late_free late = late_free::held) {
    return replay<R>(
        t,
        [&](sim::device& device) {
            tenants<R> pools;
            for (std::size_t i = 0; i < t.arenas.size(); ++i) pools.push_back(std::make_unique<R>(device));
            return pools;
        },
        {.capacity = std::size_t{8} << 30, .repeat = 1}, late);
}

/// What a replay finds wrong with a policy. The policy's own last words, about blocks it never got back, are
/// no news.
template <class R>
std::string complaint(const trace& t) {
    const misuse_handler before = set_misuse_handler([](const misuse&) noexcept {});
    std::string text;
    try {
        run<R>(t);
    } catch (const replay_error& e) {
        text = e.what();
    }
    set_misuse_handler(before);
    return text;
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

const std::string late_completion = "0,a,1,4000,0\n1,f,1,4000,0\n2,a,2,4000,0\n3,c,1,4000,0\n";

} // namespace

TEST_CASE("a block handed out between its free and its completion is found", "[cli][replay]") {
    CHECK(complaint<sound>(program(late_completion)) == "");
    CHECK(contains(complaint<forgetful>(program(late_completion)), "overlaps"));
}

TEST_CASE("a block handed out twice is found", "[cli][replay]") {
    CHECK(contains(complaint<generous>(program("0,a,1,4000,0\n1,a,2,4000,0\n")), "overlaps"));
}

TEST_CASE("a block that is not taken back is found", "[cli][replay]") {
    CHECK(contains(complaint<estranged>(program("0,a,1,4000,0\n1,f,1,4000,0\n")), "foreign_pointer"));
}

TEST_CASE("reuse on a stream that does not stand after the last use is found", "[cli][replay]") {
    const trace t = program("0,a,1,4000,1\n1,f,1,4000,1\n1,c,1,4000,1\n2,a,2,4000,2\n");
    CHECK(complaint<sound>(t) == "");
    CHECK_FALSE(complaint<hasty>(t).empty());
}

TEST_CASE("a free on another stream is the program's to order", "[cli][replay]") {
    CHECK(complaint<sound>(program("0,a,1,4000,1\n0,k,,50,1\n1,f,1,4000,2\n2,a,2,4000,2\n3,a,3,4000,1\n")) ==
          "");
    CHECK(complaint<sound>(
              program("0,a,1,4000,1\n0,k,,50,1\n1,d,,,1\n2,a,2,4000,1\n3,f,1,4000,2\n4,a,3,4000,2\n")) == "");
}

TEST_CASE("who looks into blocks is told of every use, and of what is left", "[cli][replay]") {
    const trace t = program("0,a,1,4000,0\n" // used by a stream, freed by another
                            "1,u,1,,1\n"
                            "2,f,1,4000,2\n"
                            "2,a,2,4000,0\n" // completed later
                            "3,f,2,4000,0\n"
                            "4,a,3,4000,3\n" // left, on a stream that is gone
                            "5,c,2,4000,0\n"
                            "6,d,,,3\n"
                            "7,a,4,4000,0\n"); // left
    for (const late_free late : {late_free::held, late_free::at_completion}) {
        sim::device device;
        sim_machine machine(device);
        sim_world world(machine, t.streams);
        looking watch(device, [&] { return machine.allocator_time(); });
        {
            tenants<sound> pools;
            pools.push_back(std::make_unique<sound>(device));
            play_state state;
            play<sound>(t, pools, world, watch, late, state);
            CHECK(watch.lives.size() == 2);
            unwind<sound>(t, pools, world, watch, state);
        }
        world.clear();
        CHECK(device.violations().empty());
        CHECK(device.live_events() == 0);
        const bool held = late == late_free::held;
        std::map<std::uint32_t, int> uses{{0, 1}, {2, 1}, {3, 1}};
        if (held) uses[1] = 1;
        CHECK(watch.uses == uses);
    }
}

TEST_CASE("blocks may be freed at their completion instead", "[cli][replay]") {
    const trace t =
        program("0,a,1,4000,0\n1,f,1,4000,0\n2,a,2,4000,0\n3,c,1,4000,0\n4,a,3,4000,0\n5,f,3,4000,0\n");
    const replay_result held = run<sound>(t);
    const replay_result late = run<sound>(t, late_free::at_completion);
    CHECK(late.live_peak == held.live_peak);
    CHECK(late.driver_calls.size() < held.driver_calls.size()); // no events
}

TEST_CASE("figures of a replay", "[cli][replay]") {
    const replay_result r = run<sound>(program("0,a,1,1000,0\n"
                                               "1,a,2,3000000,0\n"
                                               "2,f,1,1000,0\n"
                                               "2,c,1,1000,0\n"
                                               "3,a,3,0,0\n"
                                               "4,a,4,100000000000,0\n"
                                               "5,u,4,,1\n"
                                               "6,f,4,,0\n"
                                               "7,a,5,99999999999999999,0\n"
                                               "8,f,3,,0\n"));
    CHECK(r.requested_peak == 3001000);
    CHECK(r.live_peak == 1024 + 3000320);
    CHECK(r.reserved_peak >= r.live_peak);
    CHECK(r.segments == 1);
    CHECK(r.oom_count == 2);
    REQUIRE(r.first_oom);
    CHECK(r.first_oom->event == 5);
    CHECK(r.first_oom->requested == 100000000000);
    CHECK(r.first_oom->cause == failure_cause::device);
    CHECK_FALSE(r.completed());
    CHECK(r.ns_per_op > 0);
}

TEST_CASE("work takes time, and waiting ends it", "[cli][replay]") {
    const auto reserved = [](const std::string& then) {
        return run<sound>(program("0,a,1,900000000,0\n0,k,,500000,1\n0,u,1,,1\n1,f,1,,0\n" + then +
                                  ",a,2,900000000,0\n"))
            .reserved_peak;
    };
    CHECK(reserved("2") >= 1800000000);
    CHECK(reserved("600000") < 1800000000);
    CHECK(reserved("2,y,,,1\n2") < 1800000000);
}

TEST_CASE("a stream is made to wait on the device, and the book says so", "[cli][replay]") {
    stream_waits::enter(); // as every call of a pool does; `sound` is none
    const trace t = program("0,a,1,4000,1\n0,k,,500,1\n1,f,1,4000,1\n1,w,1,,2\n2,a,2,4000,2\n");
    play_and_look<sound>(t, [](sound&, sim_machine& machine, sim_world& world) {
        sim::device& device = machine.device();
        const auto id = [&](std::uint32_t number) { return device.describe(world.stream(number))->id; };
        CHECK(device.waits().told());
        CHECK(device.waits().before(id(2), id(1)) > 0);
        CHECK(device.waits().before(id(1), id(2)) == 0);
        CHECK(device.waits().before(id(0), id(1)) == 0);
        CHECK(device.waits().passed(id(1)) == 0);
        // The wait is the program's.
        CHECK(machine.allocator_calls()[static_cast<std::size_t>(sim::call::wait)] == 0);
        const auto before = device.now();
        CHECK(device.synchronize(world.stream(2)) == status::ok);
        CHECK(device.now() - before > std::chrono::microseconds(400)); // behind the other one's work
    });
}

TEST_CASE("what the host has waited for is said, too", "[cli][replay]") {
    stream_waits::enter(); // as every call of a pool does; `sound` is none
    const trace t = program("0,a,1,4000,1\n0,k,,500,1\n1,f,1,4000,1\n1,w,1,,2\n2,y,,,2\n");
    play_and_look<sound>(t, [](sound&, sim_machine& machine, sim_world& world) {
        stream_waits& waits = machine.device().waits();
        for (const std::uint32_t number : {1u, 2u}) // one waits for the other
            CHECK(waits.passed(machine.device().describe(world.stream(number))->id) > 0);
        CHECK(waits.passed(machine.device().describe(default_stream)->id) == 0);
    });
}

TEST_CASE("what no line of the trace says is not said", "[cli][replay]") {
    const trace t = program("0,a,1,4000,1\n" // freed on another stream
                            "1,f,1,4000,2\n"
                            "1,c,1,4000,2\n"
                            "2,a,2,4000,1\n" // used by another stream
                            "2,u,2,,3\n"
                            "3,f,2,4000,1\n"
                            "4,a,3,4000,1\n" // held
                            "5,f,3,4000,1\n"
                            "6,d,,,2\n"
                            "7,c,3,4000,1\n");
    play_and_look<sound>(
        t, [](sound&, sim_machine& machine, sim_world&) { CHECK_FALSE(machine.device().waits().told()); });
}

TEST_CASE("what is said has happened: a policy that believes it makes no race", "[cli][replay][random]") {
    std::mt19937_64 rng(test::seed());
    CAPTURE(test::seed());
    std::size_t passed_on = 0;
    for (int round = 0; round < 40; ++round) {
        std::string lines;
        std::vector<std::uint64_t> live;
        std::uint64_t now = 0;
        const auto add = [&](char op, const std::string& id, std::uint64_t bytes, std::uint64_t stream) {
            lines += std::to_string(now) + "," + op + "," + id + "," + std::to_string(bytes) + "," +
                     std::to_string(stream) + "\n";
        };
        for (std::uint64_t i = 0; i < 200; ++i) {
            now += test::below(rng, 30);
            const std::uint64_t stream = test::below(rng, 3);
            switch (test::below(rng, 10)) {
            case 0:
            case 1:
            case 2:
                add('a', std::to_string(i), std::uint64_t{1000000} << test::below(rng, 3), stream);
                live.push_back(i);
                break;
            case 3:
            case 4:
            case 5: {
                if (live.empty()) break;
                const std::size_t at = test::below(rng, live.size());
                if (test::chance(rng, 20)) add('u', std::to_string(live[at]), 0, test::below(rng, 3));
                add('f', std::to_string(live[at]), 0, stream);
                live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
                break;
            }
            case 6:
            case 7: add('k', "", test::below(rng, 300), stream); break;
            case 8: add('w', std::to_string(test::below(rng, 3)), 0, stream); break;
            default:
                if (test::chance(rng, 30)) add('y', "", 0, stream);
                break;
            }
        }
        INFO(lines);
        const trace t = program(lines);
        (void)run<sound>(t);
        (void)run<remap_pool<sim::device>>(t);
        play_and_look<trusting>(
            t, [&](trusting& pool, sim_machine&, sim_world&) { passed_on += pool.passed_on; });
    }
    CHECK(passed_on > 0);
}

TEST_CASE("a policy outside an arena has no limit to set", "[cli][replay]") {
    CHECK(contains(complaint<sound>(program("0,m,,1000,\n")), "outside an arena"));
}

TEST_CASE("random programs with every op run soundly through every policy", "[cli][replay][random]") {
    std::mt19937_64 rng(test::seed());
    CAPTURE(test::seed());
    for (int round = 0; round < 12; ++round) {
        std::string lines;
        std::vector<std::uint64_t> live;
        std::vector<std::uint64_t> freed;
        std::map<std::uint64_t, std::string> arena;
        std::uint64_t now = 0;
        std::uint64_t next = 0;
        const auto add = [&](char op, const std::string& id, std::uint64_t bytes, std::uint64_t stream,
                             const std::string& tenant) {
            lines += std::to_string(now) + "," + op + "," + id + "," + std::to_string(bytes) + "," +
                     std::to_string(stream) + "," + tenant + "\n";
        };
        const auto take = [&](std::vector<std::uint64_t>& from) {
            const std::size_t at = test::below(rng, from.size());
            const std::uint64_t id = from[at];
            from[at] = from.back();
            from.pop_back();
            return id;
        };
        const bool limited = test::chance(rng, 60);
        for (int i = 0; i < 150; ++i) {
            now += test::below(rng, 30);
            const std::uint64_t stream = test::below(rng, 4);
            switch (test::below(rng, 13)) {
            case 0:
            case 1:
            case 2:
            case 3:
                arena[next] = test::chance(rng, 50) ? "left" : "right";
                add('a', std::to_string(next), test::log_uniform(rng, 1, 200000000), stream, arena[next]);
                live.push_back(next++);
                break;
            case 4:
            case 5:
            case 6:
                if (live.empty()) break;
                freed.push_back(take(live));
                add('f', std::to_string(freed.back()), 0, stream, "");
                break;
            case 7:
                if (freed.empty()) break;
                add('c', std::to_string(take(freed)), 0, 0, "");
                break;
            case 8:
                if (live.empty()) break;
                add('u', std::to_string(live[test::below(rng, live.size())]), 0, stream, "");
                break;
            case 9: add('k', "", test::below(rng, 300), stream, ""); break;
            case 10: add('y', "", 0, stream, ""); break;
            case 11: add('w', std::to_string(test::below(rng, 4)), 0, stream, ""); break;
            default:
                if (limited && test::chance(rng, 40))
                    add('m', "", test::log_uniform(rng, 1 << 20, 1 << 30), 0, "left");
                else if (stream != 0 && test::chance(rng, 50)) {
                    add('k', "", 1, stream, ""); // mentioned, so alive
                    add('d', "", 0, stream, "");
                }
                break;
            }
        }
        if (lines.empty()) continue;
        INFO(lines);
        const trace t = program(lines, "t_us,op,id,bytes,stream,arena");
        for (const named_policy& p : parse_policies("all")) {
            INFO(p.spec);
            const replay_result r = p.run->replay(t, {.capacity = std::size_t{2} << 30, .repeat = 1});
            CHECK(r.reserved_peak <= std::size_t{2} << 30);
            CHECK((r.oom_count == 0) == !r.first_oom.has_value());
        }
    }
}
