#pragma once

/// \file
/// Host memory that can be made to fail: `fail_at = requests + k` lets the k-th request from now on throw.
///
/// Replaces the global `operator new` of a test program, so only one file of a program may include it. Threads do
/// not see each other's requests and failures.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

namespace tenure::test::host_memory {

inline thread_local std::uint64_t requests = 0; ///< of this thread, so far
inline thread_local std::uint64_t fail_at = 0;  ///< the request that fails; 0: none

inline void* get(std::size_t n, std::size_t alignment) {
    if (++requests == fail_at) throw std::bad_alloc();
    const std::size_t whole = (std::max(n, std::size_t{1}) + alignment - 1) / alignment * alignment;
    void* const p =
        alignment <= alignof(std::max_align_t) ? std::malloc(whole) : std::aligned_alloc(alignment, whole);
    if (!p) throw std::bad_alloc();
    return p;
}

inline void* get_or_null(std::size_t n, std::size_t alignment) noexcept {
    try {
        return get(n, alignment);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

/// Not inlined: g++ would take an `operator delete` that it sees calling `free` for a mistake.
[[gnu::noinline]] inline void put(void* p) noexcept {
    std::free(p);
}

/// While it lives, this thread's requests neither count nor fail.
class suspended {
  public:
    suspended() = default;
    ~suspended() {
        requests = requests_;
        fail_at = fail_at_;
    }
    suspended(const suspended&) = delete;
    suspended& operator=(const suspended&) = delete;

  private:
    std::uint64_t requests_ = requests;
    std::uint64_t fail_at_ = std::exchange(fail_at, 0);
};

} // namespace tenure::test::host_memory

void* operator new(std::size_t n) {
    return tenure::test::host_memory::get(n, 1);
}
void* operator new[](std::size_t n) {
    return tenure::test::host_memory::get(n, 1);
}
void* operator new(std::size_t n, std::align_val_t a) {
    return tenure::test::host_memory::get(n, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t n, std::align_val_t a) {
    return tenure::test::host_memory::get(n, static_cast<std::size_t>(a));
}
void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
    return tenure::test::host_memory::get_or_null(n, 1);
}
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept {
    return tenure::test::host_memory::get_or_null(n, 1);
}
void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
    return tenure::test::host_memory::get_or_null(n, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
    return tenure::test::host_memory::get_or_null(n, static_cast<std::size_t>(a));
}
void operator delete[](void* p, const std::nothrow_t&) noexcept {
    tenure::test::host_memory::put(p);
}
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept {
    tenure::test::host_memory::put(p);
}
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept {
    tenure::test::host_memory::put(p);
}
void operator delete(void* p, const std::nothrow_t&) noexcept {
    tenure::test::host_memory::put(p);
}
void operator delete(void* p) noexcept {
    tenure::test::host_memory::put(p);
}
void operator delete[](void* p) noexcept {
    tenure::test::host_memory::put(p);
}
void operator delete(void* p, std::size_t) noexcept {
    tenure::test::host_memory::put(p);
}
void operator delete[](void* p, std::size_t) noexcept {
    tenure::test::host_memory::put(p);
}
void operator delete(void* p, std::align_val_t) noexcept {
    tenure::test::host_memory::put(p);
}
void operator delete[](void* p, std::align_val_t) noexcept {
    tenure::test::host_memory::put(p);
}
void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
    tenure::test::host_memory::put(p);
}
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept {
    tenure::test::host_memory::put(p);
}
