/// \file
/// How many instructions does a warm allocate+deallocate pair take, through each door, and how many with a lock prefix?
///
///   hot_path --cases                    the cases, one a line
///   hot_path --run <case> <pairs>       warms up, then that many pairs in `hot_pairs`, for an instruction counter
///   hot_path --smoke                    every case once
///   hot_path                            every case: nanoseconds a pair, the best of five
///
/// The device is simulated, costs nothing and checks nothing, so that only our own work is seen. Counting is done by
/// `hot_path_counts.py` with valgrind; `hot_path_counts.csv` holds the counts that the tests compare with.

#include <tenure/device/sim_device.hpp>
#include <tenure/front.hpp>
#include <tenure/policy/best_fit_pool.hpp>
#include <tenure/resource/any_resource.hpp>
#include <tenure/resource/resource_ref.hpp>
#include <tenure/tenancy/arena.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

namespace {

using namespace tenure;
using namespace tenure::literals;

template <device Device>
using fast_pool = magazines<best_fit_pool<Device>>;

/// What is counted: everything from here on, nothing else.
template <class R>
[[gnu::noinline]] void hot_pairs(R& r, stream_handle s, std::size_t bytes, long pairs) {
    for (long i = 0; i < pairs; ++i) {
        void* const p = r.allocate(s, bytes);
        r.deallocate(s, p, bytes);
    }
}

struct world {
    sim::device device{sim::device_options{.cost = sim::costs::zero(), .check_overlap = false}};
    fast_pool<sim::device> pool{device, pool_options{}, {.check = stream_check::announced}};
    arena<fast_pool, sim::device> tenant{
        device, {.name = "tenant", .max = 8_GiB}, {.magazines = {.check = stream_check::announced}}};
    // Four levels, every limit set.
    arena_group gpu{{.name = "gpu", .max = 64_GiB}};
    arena_group organisation{gpu, {.name = "organisation", .min = 1_GiB, .high = 31_GiB, .max = 32_GiB}};
    arena_group user{organisation, {.name = "user", .high = 15_GiB, .max = 16_GiB}};
    arena<fast_pool, sim::device> nested{user,
                                         device,
                                         {.name = "job", .min = 1_GiB, .high = 7_GiB, .max = 8_GiB},
                                         {.magazines = {.check = stream_check::announced}}};
    best_fit_pool<sim::device> bare{device};
    stream_handle stream = device.create_stream();
};

struct door {
    const char* name;
    void (*run)(world&, std::size_t bytes, long pairs);
};

constexpr std::array doors{
    door{"pool", [](world& w, std::size_t n, long pairs) { hot_pairs(w.pool, w.stream, n, pairs); }},
    door{"arena", [](world& w, std::size_t n, long pairs) { hot_pairs(w.tenant, w.stream, n, pairs); }},
    door{"arena_four_levels",
         [](world& w, std::size_t n, long pairs) { hot_pairs(w.nested, w.stream, n, pairs); }},
    door{"resource_ref",
         [](world& w, std::size_t n, long pairs) {
             resource_ref r(w.pool);
             hot_pairs(r, w.stream, n, pairs);
         }},
    door{"resource_ref_to_arena",
         [](world& w, std::size_t n, long pairs) {
             resource_ref r(w.tenant);
             hot_pairs(r, w.stream, n, pairs);
         }},
    door{"any_resource",
         [](world& w, std::size_t n, long pairs) {
             any_resource r = any_resource::borrow(w.pool);
             hot_pairs(r, w.stream, n, pairs);
         }},
    door{"default_stream",
         [](world& w, std::size_t n, long pairs) { hot_pairs(w.pool, default_stream, n, pairs); }},
    door{"without_magazines",
         [](world& w, std::size_t n, long pairs) { hot_pairs(w.bare, w.stream, n, pairs); }},
};

constexpr std::array<std::pair<const char*, std::size_t>, 4> sizes{
    {{"512", 512}, {"65536", 64_KiB}, {"1048576", 1_MiB}, {"20971520", 20_MiB}}};

template <class F>
void for_each_case(F&& f) {
    for (const door& d : doors)
        for (const auto& [text, bytes] : sizes) f(std::string(d.name) + "/" + text, d, bytes);
}

void measure(const std::string& name, const door& d, std::size_t bytes, long pairs) {
    world w;
    d.run(w, bytes, 100);
    double best = 1e9;
    for (int repeat = 0; repeat < 5; ++repeat) {
        const auto begin = std::chrono::steady_clock::now();
        d.run(w, bytes, pairs);
        const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - begin;
        best = std::min(best, time.count() / static_cast<double>(pairs));
    }
    std::printf("%-36s %8.2f ns\n", name.c_str(), best);
}

} // namespace

int main(int argc, char** argv) {
    const std::string_view what = argc > 1 ? argv[1] : "";
    if (what == "--cases") {
        for_each_case([](const std::string& name, const door&, std::size_t) { std::puts(name.c_str()); });
    } else if (what == "--run" && argc == 4) {
        bool found = false;
        for_each_case([&](const std::string& name, const door& d, std::size_t bytes) {
            if (name != argv[2]) return;
            found = true;
            world w;
            d.run(w, bytes, std::atol(argv[3]));
        });
        if (!found) std::fprintf(stderr, "no case \"%s\"\n", argv[2]);
        return found ? 0 : 2;
    } else if (what.empty() || what == "--smoke") {
        const long pairs = what.empty() ? 2'000'000 : 100;
        for_each_case([&](const std::string& name, const door& d, std::size_t bytes) {
            measure(name, d, bytes, pairs);
        });
    } else {
        std::fprintf(stderr, "usage: hot_path [--cases | --run <case> <pairs> | --smoke]\n");
        return 2;
    }
    return 0;
}
