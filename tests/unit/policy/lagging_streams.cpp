// Streams whose work lags behind the host: what a pool holds must level off. Memory that is free for everybody must not
// become one stream's own without need: it would wait for that stream's work, and the others would buy.

#include "support/catch.hpp"
#include "support/random.hpp"

#include <tenure/core/units.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/policy/best_fit_pool.hpp>
#include <tenure/policy/remap_pool.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <string>
#include <vector>

using namespace tenure;
using namespace tenure::literals;
using namespace std::chrono_literals;

namespace {

/// A training loop: a copy stream fetches the next batch of a random size while the default stream computes with this
/// one and a side stream sums up the result. The host runs ahead by `lag` steps; 0: it waits at the end of each.
/// `told`: what waits for what is said in the device's book.
template <class Pool>
class training {
  public:
    training(std::uint64_t seed, std::size_t lag, bool told) : rng_(seed), lag_(lag), told_(told) {
        for (int i = 0; i < 12; ++i) weights_.push_back(take(default_stream, weight));
        batch_ = fetch();
    }
    ~training() {
        for (void* p : weights_) give(default_stream, p, weight);
        give(copy_, batch_.memory, batch_.bytes);
        for (const event_handle e : ends_) device_.destroy_event(e);
        device_.destroy_event(order_);
    }
    training(const training&) = delete;
    training& operator=(const training&) = delete;

    void step() {
        const batch b = batch_;
        const std::size_t n = b.bytes;
        follow(copy_, default_stream);
        use(b.memory, default_stream);
        batch_ = fetch();
        std::vector<void*> activations, gradients;
        for (int layer = 0; layer < 12; ++layer) activations.push_back(take(default_stream, n));
        device_.launch(default_stream, 360us);
        follow(default_stream, side_);
        void* const result = activations.back();
        use(result, side_);
        for (int i = 0; i < 2; ++i) {
            void* const wide = take(side_, 2 * n);
            device_.launch(side_, 30us);
            give(side_, wide, 2 * n);
        }
        follow(side_, default_stream);
        void* incoming = take(default_stream, n);
        for (std::size_t layer = 6; layer-- > 0;) {
            void* const outgoing = take(default_stream, n);
            gradients.push_back(take(default_stream, weight));
            device_.launch(default_stream, 120us);
            for (void* p : {activations[2 * layer + 1], activations[2 * layer], incoming})
                give(default_stream, p, n);
            incoming = outgoing;
        }
        give(default_stream, incoming, n);
        give(default_stream, b.memory, n);
        for (void* p : gradients) give(default_stream, p, weight);
        end_step();
    }

    /// Returns: the most that the pool has held, in units of the most that was live.
    [[nodiscard]] double ratio() const {
        return static_cast<double>(pool_.usage().reserved.peak) / static_cast<double>(peak_);
    }
    [[nodiscard]] bool validate() const { return pool_.validate(); }
    [[nodiscard]] std::vector<std::string> violations() const { return device_.violations(); }

  private:
    static constexpr std::size_t weight = 32_MiB;
    static constexpr std::size_t row = 4096 * 2;

    struct batch {
        void* memory = nullptr;
        std::size_t bytes = 0;
    };

    void* take(stream_handle s, std::size_t n) {
        live_ += n;
        peak_ = std::max(peak_, live_);
        void* const p = pool_.allocate(s, n);
        device_.block_allocated(p, n, s);
        return p;
    }
    void give(stream_handle s, void* p, std::size_t n) {
        live_ -= n;
        device_.block_freed(p, s);
        pool_.deallocate(s, p, n);
    }
    void use(void* p, stream_handle s) {
        pool_.record_use(p, s);
        device_.block_used(p, s);
    }
    /// Effects: what `second` does from now on is behind what `first` has been given.
    void follow(stream_handle first, stream_handle second) {
        REQUIRE(device_.record(order_, first) == status::ok);
        REQUIRE(device_.wait(second, order_) == status::ok);
        if (told_) device_.waits().ordered(id(first), id(second));
    }
    [[nodiscard]] std::uint64_t id(stream_handle s) { return device_.describe(s)->id; }
    batch fetch() {
        const std::size_t n = (256 + test::below(rng_, 8192 - 256)) * row;
        void* const raw = take(copy_, 2 * n);
        device_.launch(copy_, 400us);
        void* const memory = take(copy_, n);
        device_.launch(copy_, 20us);
        give(copy_, raw, 2 * n);
        return {memory, n};
    }
    void end_step() {
        ends_.push_back(*device_.create_event());
        REQUIRE(device_.record(ends_.back(), default_stream) == status::ok);
        if (ends_.size() <= lag_) return;
        REQUIRE(device_.synchronize(ends_.front()) == status::ok);
        if (lag_ == 0) REQUIRE(device_.synchronize() == status::ok);
        device_.destroy_event(ends_.front());
        ends_.pop_front();
    }

    std::mt19937_64 rng_;
    std::size_t lag_;
    bool told_;
    sim::device device_{{.capacity = 64_GiB, .cost = sim::costs::zero()}};
    Pool pool_{device_};
    stream_handle copy_ = device_.create_stream(), side_ = device_.create_stream();
    event_handle order_ = *device_.create_event();
    std::deque<event_handle> ends_;
    std::vector<void*> weights_;
    batch batch_;
    std::size_t live_ = 0, peak_ = 0;
};

template <class Pool>
double ratio_after(std::size_t steps, std::size_t lag, bool told = false) {
    training<Pool> program(test::seed(), lag, told);
    for (std::size_t i = 0; i < steps; ++i) program.step();
    CHECK(program.validate());
    CHECK(program.violations().empty());
    return program.ratio();
}

} // namespace

TEST_CASE("what remap_pool holds levels off when streams lag behind the host", "[policy][remap][streams]") {
    CAPTURE(test::seed());
    CHECK(ratio_after<remap_pool<sim::device>>(200, 0) < 1.4);
    CHECK(ratio_after<remap_pool<sim::device>>(200, 3) < 2.2);
}

TEST_CASE("what best_fit_pool holds levels off when the host waits for each step",
          "[policy][best_fit][streams]") {
    CAPTURE(test::seed());
    CHECK(ratio_after<best_fit_pool<sim::device>>(200, 0) < 2.0);
}

TEST_CASE("a pool that is told what waits for what holds less than one that must see it pass",
          "[policy][streams][stream_waits]") {
    CAPTURE(test::seed());
    for (const std::size_t lag : {0u, 1u, 3u}) {
        CAPTURE(lag);
        CHECK(ratio_after<remap_pool<sim::device>>(200, lag, true) < (lag == 0 ? 1.25 : 1.5));
        CHECK(ratio_after<remap_pool<sim::device>>(200, lag, true) <
              ratio_after<remap_pool<sim::device>>(200, lag));
    }
    CHECK(ratio_after<best_fit_pool<sim::device>>(200, 3, true) <
          ratio_after<best_fit_pool<sim::device>>(200, 3));
}
