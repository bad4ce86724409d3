#pragma once

/// \file
/// `recording_resource`: a resource without memory that writes down how it was called.
///
/// It answers every call with a value that names the call, so that a test of a forwarding layer can see that
/// each argument arrived in its place and each answer came back. Thread-compatible.

#include <tenure/resource/resource.hpp>

#include <cstddef>
#include <string>

namespace tenure::test {

/// The arguments of one call; those that a call does not have stay as they are here.
struct recorded_call {
    std::string name;
    stream_handle stream = nullptr;
    const void* pointer = nullptr;
    std::size_t bytes = 0;
    std::size_t alignment = 0;
    friend bool operator==(const recorded_call&, const recorded_call&) = default;
};

inline stream_handle fake_stream(std::uintptr_t n) {
    return reinterpret_cast<stream_handle>(n);
}
inline void* fake_pointer(std::uintptr_t n) {
    return reinterpret_cast<void*>(n);
}

class recording_resource {
  public:
    explicit recording_resource(int* alive = nullptr) : alive_(alive) {
        if (alive_) ++*alive_;
    }
    ~recording_resource() {
        if (alive_) --*alive_;
    }
    recording_resource(const recording_resource&) = delete;
    recording_resource& operator=(const recording_resource&) = delete;

    void* allocate(stream_handle s, std::size_t n, std::size_t a) {
        last = {"allocate", s, nullptr, n, a};
        if (fail) throw_failure(failure(n));
        return fake_pointer(0x1000);
    }
    allocate_result try_allocate(stream_handle s, std::size_t n, std::size_t a) noexcept {
        last = {"try_allocate", s, nullptr, n, a};
        if (fail) return failure(n);
        return fake_pointer(0x2000);
    }
    void* allocate_sync(std::size_t n, std::size_t a) {
        last = {"allocate_sync", nullptr, nullptr, n, a};
        if (fail) throw_failure(failure(n));
        return fake_pointer(0x3000);
    }
    void deallocate(stream_handle s, void* p, std::size_t n, std::size_t a) noexcept {
        last = {"deallocate", s, p, n, a};
    }
    deallocate_result try_deallocate(stream_handle s, void* p, std::size_t n, std::size_t a) noexcept {
        last = {"try_deallocate", s, p, n, a};
        if (!fail) return freed{};
        misuse m;
        m.kind = misuse_kind::double_free;
        m.pointer = p;
        return m;
    }
    void deallocate_sync(void* p, std::size_t n, std::size_t a) noexcept {
        last = {"deallocate_sync", nullptr, p, n, a};
    }
    void release(void* p) noexcept { last = {"release", nullptr, p, 0, 0}; }
    void record_use(void* p, stream_handle s) noexcept { last = {"record_use", s, p, 0, 0}; }
    bool owns(const void* p) const noexcept { return p == fake_pointer(0x1000); }
    usage_counters usage() const {
        usage_counters u;
        u.failures = 77;
        return u;
    }
    std::size_t trim(std::size_t keep) {
        last = {"trim", nullptr, nullptr, keep, 0};
        return keep + 1;
    }
    memory_snapshot snapshot() const {
        memory_snapshot m;
        m.segments.resize(3);
        return m;
    }
    bool validate() const noexcept { return valid; }

    recorded_call last;
    bool fail = false;
    bool valid = true;

  private:
    static allocation_failure failure(std::size_t n) {
        allocation_failure f;
        f.requested = n;
        f.cause = failure_cause::arena_limit;
        return f;
    }
    int* alive_ = nullptr;
};

static_assert(resource<recording_resource>);

} // namespace tenure::test
