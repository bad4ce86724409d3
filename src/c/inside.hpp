#pragma once

/// \file
/// `handle`, and `inside`: a call that uses one, so that nobody takes away what stands behind it meanwhile.
///
/// Each thread has a slot, in which the handle stands that its call uses. Whoever closes a handle marks it and then waits
/// until it stands in no slot:
///
///     a call      slot := handle      is the mark still "open"?      ... use it ...      slot := nothing
///     closing     mark := "closing"   wait until no slot has it      "closed", or "open" again
///
/// Both write first and read then, in one order that all threads see, so at least one of them notices the other. A call that
/// finds a handle closing waits for what becomes of it.
///
/// Invariants:
///   1. A handle that stands in a slot and was seen open is not closed before it is gone from there.
///   2. Handles are never destroyed, only closed; slots neither, but a thread that ends leaves its slot to another. What
///      calls in even later (a destructor of a thread-local object, or of `pthread_key_create`) has a slot for the call.
///   3. A thread is inside of one handle at a time: nothing of the library calls the C interface.
///
/// Complexity: a call writes one line of memory that is its thread's own. Closing looks at a slot for each thread there was at
/// the same time. Thread-safety: thread-safe.

#include <tenure/tenure.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <thread>
#include <utility>

namespace tenure::c {

/// What both handles begin with.
struct handle {
    static constexpr std::uint32_t device = 0x74656e64;
    static constexpr std::uint32_t arena = 0x74656e61;
    static constexpr std::uint32_t closing = 0x63000001;

    std::atomic<std::uint32_t> mark{0}; ///< one of these, or 0: there is nothing behind it (any more)
};

class call_slots {
  public:
    struct alignas(64) slot {
        std::atomic<const handle*> in{nullptr};
        std::atomic<bool> taken{true};
        slot* next = nullptr;
    };

    /// A slot for a call of this thread; none where the host has no memory for it.
    class lease {
      public:
        lease() noexcept = default;
        lease(slot* where, bool for_one_call) noexcept : where_(where), for_one_call_(for_one_call) {}
        lease(const lease&) = delete;
        lease& operator=(const lease&) = delete;
        ~lease() {
            if (for_one_call_) [[unlikely]]
                give_back(where_);
        }

        explicit operator bool() const noexcept { return where_ != nullptr; }
        slot* operator->() const noexcept { return where_; }

      private:
        slot* where_ = nullptr;
        bool for_one_call_ = false; ///< the thread has left its own already
    };

    static lease of_this_thread() noexcept {
        // These two outlive the thread's other objects.
        static constinit thread_local slot* mine = nullptr;
        static constinit thread_local bool ended = false;
        if (mine == nullptr) [[unlikely]] {
            if (ended) return {take(), true};
            struct at_end {
                slot** mine;
                bool* ended;
                ~at_end() {
                    give_back(std::exchange(*mine, nullptr));
                    *ended = true;
                }
            };
            static thread_local const at_end hook{&mine, &ended};
            (void)&hook;
            mine = take();
        }
        return {mine, false};
    }

    /// Effects: waits until `h` stands in no slot.
    static void wait_until_left(const handle& h) noexcept {
        for (const slot* s = first_.load(); s != nullptr; s = s->next)
            while (s->in.load() == &h) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }

    /// Returns: number of slots that there are.
    static std::size_t size() noexcept {
        std::size_t n = 0;
        for (const slot* s = first_.load(); s != nullptr; s = s->next) ++n;
        return n;
    }

    /// Effects: other threads are inside of nothing: in a child of `fork` there are none.
    static void forget_others() noexcept {
        for (slot* s = first_.load(); s != nullptr; s = s->next) s->in.store(nullptr);
    }

  private:
    static void give_back(slot* s) noexcept {
        if (s != nullptr) s->taken.store(false, std::memory_order_release);
    }

    static slot* take() noexcept {
        for (slot* s = first_.load(); s != nullptr; s = s->next)
            if (bool free = false; s->taken.compare_exchange_strong(free, true)) return s;
        auto* const made = new (std::nothrow) slot;
        if (made == nullptr) return nullptr;
        made->next = first_.load();
        while (!first_.compare_exchange_weak(made->next, made)) {
        }
        return made;
    }

    static inline constinit std::atomic<slot*> first_{nullptr};
};

class inside {
  public:
    /// `h` may be null. `kind`: one of the marks of a handle.
    inside(const handle* h, std::uint32_t kind) noexcept
        : slot_(h == nullptr ? call_slots::lease() : call_slots::of_this_thread()) {
        if (!slot_) return;
        while (true) {
            slot_->in.store(h);
            const std::uint32_t mark = h->mark.load();
            open_ = mark == kind;
            if (open_) [[likely]]
                return;
            slot_->in.store(nullptr, std::memory_order_release);
            if (mark != handle::closing) return;
            std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
    }
    inside(const inside&) = delete;
    inside& operator=(const inside&) = delete;
    ~inside() {
        if (open_) slot_->in.store(nullptr, std::memory_order_release);
    }

    /// Whether the handle is of the kind, and stays open while this lives.
    explicit operator bool() const noexcept { return open_; }

  private:
    call_slots::lease slot_;
    bool open_ = false;
};

/// Closes a handle if `agrees()` says so, at a moment when nobody is inside of it.
/// Returns: whether it was open; if `agrees` says no or throws, it is open again.
template <class Agrees>
bool close_handle(handle& h, std::uint32_t kind, Agrees&& agrees) {
    struct reopened {
        ~reopened() { h.mark.store(to); }
        handle& h;
        std::uint32_t to;
    };
    for (std::uint32_t was = kind; !h.mark.compare_exchange_weak(was, handle::closing); was = kind) {
        if (was != kind && was != handle::closing) return false;
        if (was == handle::closing) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    reopened after{h, kind};
    call_slots::wait_until_left(h);
    if (agrees()) after.to = 0;
    return true;
}

} // namespace tenure::c
