// Every device call of a program is made to fail once, for every policy: the k-th call of a kind, for every
// kind and k, with the status that this kind really gives. Nothing may be lost and nothing unsafe. On a GPU the call is
// not made, and all others are: what is left behind is the driver's to judge.

#include "support/catch.hpp"
#include "support/policy_oracle.hpp"
#include "support/policy_world.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

using namespace tenure;
using namespace tenure::test;

namespace {

/// What the driver answers when this call goes wrong.
status natural_failure(sim::call c) {
    switch (c) {
    case sim::call::allocate:
    case sim::call::allocate_from:
    case sim::call::create_memory: return status::out_of_memory;
    default: return status::failed;
    }
}

inline sim::device_options small_device() {
    return {.capacity = 512_MiB, .cost = sim::costs::zero()};
}

struct fault {
    sim::call kind{};
    std::uint64_t number = 0;
    std::uint64_t count = 1;
};

/// Runs the program with the fault. Returns: how many calls of each kind it made.
inline std::array<std::uint64_t, sim::call_kinds> run_with(const policy_subject& subject,
                                                           const std::vector<step>& program,
                                                           const program_options& o, const fault* f) {
    misuse_log log;
    policy_world w(subject, small_device());
    policy_runner runner(w, o);
    if (f != nullptr) w.device.fail_call(f->kind, f->number, natural_failure(f->kind), f->count);
    const auto before = w.device.call_counts();
    for (const step& s : program) runner.run(s);
    auto made = w.device.call_counts();
    for (std::size_t i = 0; i < made.size(); ++i) made[i] -= before[i];

    w.device.clear_faults();
    CHECK(w.pool().validate());
    CHECK(runner.disagreement() == "");
    runner.free_all();
    w.finish();
    CHECK(log.take().empty());
    return made;
}

/// Runs the program once for every call that it makes.
inline void fail_every_call(const policy_subject& subject, const std::vector<step>& program,
                            const program_options& o, std::uint64_t count) {
    const auto calls = run_with(subject, program, o, nullptr);
    for (std::size_t kind = 0; kind < calls.size(); ++kind) {
        const auto c = static_cast<sim::call>(kind);
        for (std::uint64_t k = 1; k <= calls[kind]; ++k) {
            CAPTURE(sim::to_string(c), k, count);
            const fault f{c, k, count};
            run_with(subject, program, o, &f);
        }
    }
}

inline constexpr program_options short_program{
    .steps = 60, .streams = 3, .largest = 48_MiB, .largest_alignment = 1_MiB, .short_lived_streams = false};

} // namespace

POLICY_TEST_CASE("one failing device call loses nothing, whichever it is", "[fault][policy]") {
    const std::uint64_t programs = world_is_simulated ? 3 : 1; // a GPU takes its time
    for (std::uint64_t program = 1; program <= programs; ++program) {
        CAPTURE(program);
        fail_every_call(subject, make_program(program, short_program), short_program, 1);
    }
}

POLICY_TEST_CASE("a device call that fails three times in a row loses nothing", "[fault][policy]") {
    fail_every_call(subject, make_program(4, short_program), short_program, 3);
}

POLICY_TEST_CASE("a failing device call during construction or destruction loses nothing",
                 "[fault][policy]") {
    for (std::size_t kind = 0; kind < sim::call_kinds; ++kind) {
        for (std::uint64_t k = 1; k <= 4; ++k) {
            const auto c = static_cast<sim::call>(kind);
            CAPTURE(sim::to_string(c), k);
            misuse_log log;
            world_device device(small_device());
            const stream_handle s = device.create_stream();
            const stream_handle user = device.create_stream();
            device.fail_call(c, k, natural_failure(c));
            try {
                const std::unique_ptr<live_policy> holder = subject.make(device);
                resource_ref p = holder->ref();
                const allocate_result r = p.try_allocate(s, 3_MiB);
                const allocate_result q = p.try_allocate(s, 100);
                if (r) p.record_use(*r, user);
                if (r) p.deallocate(s, *r, 3_MiB);
                if (q) p.deallocate(s, *q, 100);
                device.clear_faults();
                device.fail_call(c, k, natural_failure(c)); // from here on the destructor
            } catch (const std::exception&) { // a constructor may refuse; then nothing of it is left
            }
            device.clear_faults();
            device.advance(long_time);
            CHECK(device.reserved() == 0);
            CHECK(device.live_allocations() == 0);
            CHECK(device.live_events() == 0);
            CHECK(device.live_pools() == 0);
            CHECK(joined(device.violations()) == "");
            CHECK(log.take().empty());
        }
    }
}
