/// Magazines and streams: judged by the simulated device's overlap check, in stream order.

#include "support/catch.hpp"
#include "support/checked_resource.hpp"
#include "support/misuse_log.hpp"

#include <tenure/core/bits.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/front.hpp>
#include <tenure/policy.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace tenure;
using namespace tenure::literals;
using namespace std::chrono_literals;

namespace {

template <class Pool>
struct world {
    sim::device device{sim::device_options{.cost = sim::costs::zero()}};
    magazines<Pool> front;
    test::checked_resource<magazines<Pool>> r{front, device};

    explicit world(magazine_options options = {}) : front(device, typename Pool::options_type{}, options) {}

    void* use(stream_handle s, std::size_t n, std::chrono::nanoseconds length = 10us) {
        void* const p = r.allocate(s, n);
        r.use_own(p, s, length);
        return p;
    }
    void warm(stream_handle s, std::size_t n) {
        for (int i = 0; i < 4; ++i) r.deallocate(s, use(s, n), n);
    }
    [[nodiscard]] std::size_t parked() {
        return front.pool().usage().allocated.current - front.usage().allocated.current;
    }
    void check_clean() {
        std::string all;
        for (const std::string& v : r.violations()) all += v + '\n';
        CHECK(all == "");
        CHECK(front.validate());
    }
};

using best_fit = best_fit_pool<sim::device>;
using caching = caching_pool<sim::device>;

} // namespace

TEMPLATE_TEST_CASE("a magazine of a destroyed stream serves nobody who got its handle", "[front][streams]",
                   best_fit, caching) {
    world<TestType> w;
    for (int round = 0; round < 6; ++round) {
        const stream_handle s = w.device.create_stream();
        w.warm(s, 4_KiB);
        void* const p = w.use(s, 4_KiB, 10ms);
        if (round % 2 == 0)
            w.r.deallocate(s, p, 4_KiB);
        else
            REQUIRE(w.device.synchronize(s) == status::ok);
        w.device.destroy_stream(s); // its work goes on
        const stream_handle same = w.device.create_stream();
        REQUIRE(same == s);
        if (round % 2 != 0) { // freed on the new stream, which the program has put after the old one
            w.r.use_own(p, same, 10ms);
            w.r.deallocate(same, p, 4_KiB);
        }
        void* const q = w.use(same, 4_KiB);
        void* const t = w.use(default_stream, 4_KiB);
        w.r.deallocate(default_stream, t, 4_KiB);
        w.r.deallocate(same, q, 4_KiB);
        w.check_clean();
        w.device.destroy_stream(same);
    }
    w.check_clean();
}

TEMPLATE_TEST_CASE("forget hands the magazines of a stream back before it is destroyed", "[front][streams]",
                   best_fit, caching) {
    world<TestType> w({.check = stream_check::announced});
    for (int round = 0; round < 4; ++round) {
        const stream_handle s = w.device.create_stream();
        w.warm(s, 4_KiB);
        w.r.deallocate(s, w.use(s, 4_KiB, 10ms), 4_KiB);
        CHECK(w.parked() != 0);
        w.front.forget(s);
        CHECK(w.parked() == 0);
        w.device.destroy_stream(s);
        const stream_handle same = w.device.create_stream();
        REQUIRE(same == s);
        w.warm(same, 4_KiB);
        w.check_clean();
        w.front.forget(same);
        w.device.destroy_stream(same);
    }
}

TEMPLATE_TEST_CASE("a block freed on another stream does not go into a magazine", "[front][streams]",
                   best_fit, caching) {
    world<TestType> w;
    const stream_handle a = w.device.create_stream();
    const stream_handle b = w.device.create_stream();
    w.warm(a, 1_MiB);
    w.warm(b, 1_MiB);
    for (int i = 0; i < 20; ++i) {
        void* const p = w.use(a, 1_MiB);
        const result<event_handle, status> e = w.device.create_event();
        REQUIRE(e);
        REQUIRE(w.device.record(*e, a) == status::ok);
        REQUIRE(w.device.wait(b, *e) == status::ok);
        REQUIRE(w.device.destroy_event(*e) == status::ok);
        w.r.use_own(p, b, 5ms);
        w.r.deallocate(b, p, 1_MiB);
        void* const q = w.use(a, 1_MiB);
        w.r.deallocate(a, q, 1_MiB);
    }
    w.check_clean();
}

TEMPLATE_TEST_CASE("a block with a recorded use waits for it, though its size is in magazines",
                   "[front][streams]", best_fit, caching) {
    world<TestType> w;
    const stream_handle home = w.device.create_stream();
    const stream_handle user = w.device.create_stream();
    w.warm(home, 4_KiB);
    w.device.hold(user);
    std::vector<void*> used;
    for (int i = 0; i < 10; ++i) {
        void* const p = w.use(home, 4_KiB);
        w.r.use(p, user, 1ms);
        w.r.record_use(p, user); // twice is once
        CHECK(w.r.owns(p));
        w.r.deallocate(home, p, 4_KiB);
        CHECK_FALSE(w.r.owns(p));
        used.push_back(p);
    }
    for (int i = 0; i < 30; ++i) {
        void* const p = w.use(home, 4_KiB);
        for (void* u : used) CHECK(p != u);
        w.r.deallocate(home, p, 4_KiB);
    }
    w.device.finish(user);
    w.check_clean();
}

TEMPLATE_TEST_CASE("memory freed in a capture does not come back while its graph may replay",
                   "[front][capture]", best_fit, caching) {
    world<TestType> w;
    const stream_handle s = w.device.create_stream();
    w.warm(s, 4_KiB);
    void* const before = w.use(s, 4_KiB);
    void* const parked = w.use(s, 4_KiB);
    w.r.deallocate(s, parked, 4_KiB);
    const std::uint64_t capture = w.device.begin_capture(s);
    w.r.use_own(before, s, 10us);
    w.r.deallocate(s, before, 4_KiB);
    void* const inside = w.r.allocate(s, 4_KiB);
    w.r.use_own(inside, s, 10us);
    w.r.deallocate(s, inside, 4_KiB);
    CHECK(w.device.end_capture(s));
    for (int i = 0; i < 10; ++i) {
        w.device.replay(capture, s);
        void* const p = w.use(s, 4_KiB);
        CHECK(p != before);
        CHECK(p != inside);
        w.r.deallocate(s, p, 4_KiB);
    }
    w.check_clean();
    w.device.advance(1s);
    REQUIRE(w.device.synchronize(s) == status::ok);
    w.front.release_captured(capture);
    w.front.trim(0);
    CHECK(w.front.usage().captured == 0);
    CHECK(w.front.usage().reserved.current == 0);
}

TEST_CASE("a capture keeps nothing that other threads had parked on its stream before", "[front][capture]") {
    // Whatever the first call is that names the stream in the capture, and whatever of the parked memory is where.
    enum class first_call { free_tracked, free_large, record_use, allocate, allocate_large, last };
    for (int i = 0; i < static_cast<int>(first_call::last); ++i)
        for (const bool in_depot : {false, true}) {
            CAPTURE(i, in_depot);
            world<caching_pool<sim::device>> w;
            const stream_handle s = w.device.create_stream();
            void *small = nullptr, *large = nullptr;
            std::atomic<bool> over{false};
            std::atomic<bool> parked{false};
            std::thread other([&] { // this thread has no rack for the stream
                w.warm(s, 64_KiB);
                small = w.r.allocate(s, 64_KiB);
                large = w.r.allocate(s, 20_MiB);
                std::vector<void*> blocks;
                for (int k = 0; k < (in_depot ? 100 : 25); ++k) blocks.push_back(w.r.allocate(s, 64_KiB));
                for (void* const p : blocks) w.r.deallocate(s, p, 64_KiB);
                parked = true;
                while (!in_depot && !over) std::this_thread::yield();
            });
            while (!parked) std::this_thread::yield();
            if (in_depot) other.join();
            REQUIRE(w.parked() >= 15 * 64_KiB);
            w.device.begin_capture(s);
            switch (static_cast<first_call>(i)) {
            case first_call::free_tracked: w.r.deallocate(s, std::exchange(small, nullptr), 64_KiB); break;
            case first_call::free_large: w.r.deallocate(s, std::exchange(large, nullptr), 20_MiB); break;
            case first_call::record_use: w.r.record_use(small, s); break;
            case first_call::allocate: w.r.deallocate(s, w.r.allocate(s, 64_KiB), 64_KiB); break;
            case first_call::allocate_large: w.r.deallocate(s, w.r.allocate(s, 20_MiB), 20_MiB); break;
            case first_call::last: break;
            }
            CHECK(w.parked() == 0);
            w.r.deallocate(s, w.r.allocate(s, 64_KiB), 64_KiB);
            CHECK(w.device.end_capture(s));
            w.front.trim(no_limit);
            CHECK(w.front.usage().captured <= 22_MiB);
            void* const outside = w.r.allocate(s, 512_KiB); // from what was parked, on its stream
            w.r.deallocate(s, outside, 512_KiB);
            const std::size_t held_for_graph = w.front.usage().captured;
            over = true;
            if (other.joinable()) other.join();
            if (small != nullptr) w.r.deallocate(s, small, 64_KiB);
            if (large != nullptr) w.r.deallocate(s, large, 20_MiB);
            REQUIRE(w.device.synchronize(s) == status::ok);
            w.front.trim(0);
            CHECK(w.front.usage().reserved.current <= held_for_graph + 22_MiB);
            w.check_clean();
        }
}

TEST_CASE("another stream gets parked memory once its work has passed", "[front][streams]") {
    world<best_fit> w;
    const stream_handle busy = w.device.create_stream();
    const stream_handle other = w.device.create_stream();
    std::vector<void*> blocks;
    w.warm(busy, 16_MiB);
    for (int i = 0; i < 16; ++i) blocks.push_back(w.use(busy, 16_MiB, 1us));
    for (void* p : blocks) w.r.deallocate(busy, p, 16_MiB);
    const std::size_t reserved = w.device.reserved();
    void* const first = w.use(other, 200_MiB); // asks for marks, may buy
    w.device.advance(1s);
    w.r.deallocate(busy, w.use(busy, 16_MiB), 16_MiB); // goes to the pool, which marks what it holds
    w.device.advance(1s);
    void* const second = w.use(other, 200_MiB);
    CHECK(w.device.reserved() <= reserved + 256_MiB);
    w.r.deallocate(other, first, 200_MiB);
    w.r.deallocate(other, second, 200_MiB);
    w.check_clean();
}

TEST_CASE("a thread keeps blocks of a bounded number of streams", "[front][streams]") {
    world<best_fit> w({.max_streams = 4});
    std::vector<stream_handle> streams;
    for (int i = 0; i < 20; ++i) {
        streams.push_back(w.device.create_stream());
        w.warm(streams.back(), 4_KiB);
    }
    CHECK(w.parked() <= 4 * 16 * 4_KiB);
    for (const stream_handle s : streams) w.warm(s, 4_KiB);
    w.check_clean();
}
