#include "cli/policies.hpp"
#include "cli/replay.hpp"

#include "scratch_file.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

#include <tenure/policy/best_fit_pool.hpp>

#include <cstdint>
#include <map>
#include <memory>
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
            switch (test::below(rng, 12)) {
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
