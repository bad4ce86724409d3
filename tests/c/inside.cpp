// Calls, and who closes what they use: src/c/inside.hpp.

#include "support/catch.hpp"

#include "../../src/c/inside.hpp"

#include <atomic>
#include <cstddef>
#include <thread>

namespace {

using namespace tenure::c;

/// Calls f when the thread ends, after it has left its slot if the object is older than the thread's first call.
class at_end_of_thread {
  public:
    template <class F>
    void call(const F& f) noexcept {
        call_ = [](const void* self) { (*static_cast<const F*>(self))(); };
        argument_ = &f;
    }
    ~at_end_of_thread() {
        if (call_ != nullptr) call_(argument_);
    }

  private:
    void (*call_)(const void*) = nullptr;
    const void* argument_ = nullptr;
};

/// Effects: a thread calls, leaves its slot, and then calls `late`.
template <class F>
std::thread thread_with_late_call(const handle& h, const F& late) {
    return std::thread([&] {
        static thread_local at_end_of_thread last;
        last.call(late);
        const inside here(&h, handle::arena);
    });
}

} // namespace

TEST_CASE("C: threads that call while they end use no more slots than others", "[c][threads]") {
    handle h;
    h.mark = handle::arena;
    std::atomic<unsigned> entered{0};
    const auto late = [&] {
        for (int i = 0; i < 3; ++i)
            if (const inside here(&h, handle::arena); here) ++entered;
        const inside other_kind(&h, handle::device);
        if (other_kind) ++entered;
    };
    thread_with_late_call(h, late).join();
    const std::size_t slots = call_slots::size();
    for (int i = 0; i < 20; ++i) thread_with_late_call(h, late).join();
    CHECK(entered == 21 * 3);
    CHECK(call_slots::size() == slots);
    CHECK(close_handle(h, handle::arena, [] { return true; }));
}

TEST_CASE("C: a handle is not closed while a thread that ends is in it", "[c][threads]") {
    handle h;
    h.mark = handle::arena;
    std::atomic<bool> tried{false}, left{false};
    bool entered = false;
    const auto late = [&] {
        const inside here(&h, handle::arena);
        entered = static_cast<bool>(here);
        tried = true;
        while (h.mark != handle::closing) std::this_thread::yield();
        for (int i = 0; i < 100; ++i) std::this_thread::yield();
        left = true;
    };
    std::thread t = thread_with_late_call(h, late);
    while (!tried) std::this_thread::yield();
    CHECK(entered);
    bool had_left = false;
    CHECK(close_handle(h, handle::arena, [&] { return had_left = left; }));
    CHECK(had_left);
    t.join();
    CHECK_FALSE(static_cast<bool>(inside(&h, handle::arena)));
}
