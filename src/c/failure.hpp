#pragma once

/// \file
/// What a call answers: codes, and what this thread knows about its last failure.
///
/// Invariants:
///   1. Nothing here throws, and once the thread's first failure has made room for the texts (glibc ends the program where
///      it cannot), nothing takes host memory: reporting a failure does not fail.
///   2. A success touches nothing here; the hot path pays nothing for it.
///
/// Thread-safety: everything is the calling thread's own.

#include <tenure/core/error.hpp>
#include <tenure/core/status.hpp>
#include <tenure/tenancy/arena_config.hpp>
#include <tenure/tenancy/limits.hpp>
#include <tenure/tenure.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace tenure::c {

/// A failure with a code of its own, thrown where no type of the library says as much.
class coded_error : public std::runtime_error {
  public:
    coded_error(tenure_code code, const std::string& text) : std::runtime_error(text), code_(code) {}
    [[nodiscard]] tenure_code code() const noexcept { return code_; }

  private:
    tenure_code code_;
};

struct last_failure {
    std::array<char, 1024> text{};
    std::optional<allocation_failure> allocation{};
    bool kept = false; ///< by an `untold`

    static last_failure& of_this_thread() noexcept {
        thread_local last_failure f;
        return f;
    }
};

/// Effects: `text` is this thread's last error. Returns: `code`.
inline tenure_code fail(tenure_code code, std::string_view text) noexcept {
    last_failure& last = last_failure::of_this_thread();
    if (last.kept) return code;
    auto& to = last.text;
    const std::size_t n = std::min(text.size(), to.size() - 1);
    std::memcpy(to.data(), text.data(), n);
    to[n] = '\0';
    return code;
}

/// Returns: the code for a device's answer that is no success.
constexpr tenure_code code_of(status s) noexcept {
    switch (s) {
    case status::ok: return TENURE_OK;
    case status::out_of_memory: return TENURE_OUT_OF_MEMORY;
    case status::over_limit: return TENURE_OVER_LIMIT;
    case status::invalid_value: return TENURE_INVALID_ARGUMENT;
    case status::capture_violation: return TENURE_CAPTURE;
    case status::not_supported: return TENURE_NOT_SUPPORTED;
    case status::no_device:
    case status::shutting_down:
    case status::device_lost: return TENURE_NO_DEVICE;
    case status::not_ready:
    case status::would_deadlock:
    case status::failed: return TENURE_DRIVER;
    }
    return TENURE_INTERNAL;
}

constexpr tenure_code code_of(const allocation_failure& f) noexcept {
    switch (f.cause) {
    case failure_cause::arena_limit:
    case failure_cause::ancestor_limit: return TENURE_OVER_LIMIT;
    case failure_cause::device:
    case failure_cause::fragmentation:
    case failure_cause::stream_pending: return TENURE_OUT_OF_MEMORY;
    case failure_cause::capture: return TENURE_CAPTURE;
    case failure_cause::invalid_alignment: return TENURE_INVALID_ARGUMENT;
    case failure_cause::driver: return beyond_reach(f.driver_status) ? TENURE_NO_DEVICE : TENURE_DRIVER;
    }
    return TENURE_INTERNAL;
}

constexpr tenure_code code_of(misuse_kind k) noexcept {
    switch (k) {
    case misuse_kind::foreign_pointer: return TENURE_FOREIGN_POINTER;
    case misuse_kind::wrong_arena: return TENURE_WRONG_ARENA;
    case misuse_kind::double_free: return TENURE_DOUBLE_FREE;
    case misuse_kind::interior_pointer: return TENURE_INTERIOR_POINTER;
    case misuse_kind::size_mismatch: return TENURE_SIZE_MISMATCH;
    case misuse_kind::live_at_destruction: return TENURE_LIVE_BLOCKS;
    case misuse_kind::driver: return TENURE_DRIVER;
    case misuse_kind::overrun: return TENURE_INTERNAL; // no guard stands around an arena here
    }
    return TENURE_INTERNAL;
}

inline tenure_code fail(const allocation_failure& f) noexcept {
    if (last_failure& last = last_failure::of_this_thread(); !last.kept) last.allocation = f;
    try {
        return fail(code_of(f), f.text());
    } catch (...) { // no host memory for the sentence
        return fail(code_of(f), to_string(f.cause));
    }
}

inline tenure_code fail(const misuse& m) noexcept {
    try {
        return fail(code_of(m.kind), m.text());
    } catch (...) {
        return fail(code_of(m.kind), to_string(m.kind));
    }
}

inline tenure_code fail(status s, const char* doing) noexcept {
    char text[128];
    std::snprintf(text, sizeof text, "%s: the device said %s", doing, to_string(s));
    last_failure& last = last_failure::of_this_thread();
    if (!last.kept && lacks_memory(s)) last.allocation.reset(); // it is of an older one
    return fail(code_of(s), text);
}

/// While it lives, this thread's last failure stays what it is: for what may run in the middle of anything.
class untold {
  public:
    untold() noexcept : before_(std::exchange(last_failure::of_this_thread().kept, true)) {}
    untold(const untold&) = delete;
    untold& operator=(const untold&) = delete;
    ~untold() { last_failure::of_this_thread().kept = before_; }

  private:
    bool before_;
};

/// Returns: what `f` returns; for what it throws, the code and this thread's last error.
template <class F>
tenure_code guarded(F&& f) noexcept {
    try {
        return f();
    } catch (const coded_error& e) {
        return fail(e.code(), e.what());
    } catch (const out_of_memory& e) {
        return fail(e.failure());
    } catch (const tenure::invalid_alignment& e) {
        return fail(TENURE_INVALID_ARGUMENT, e.what());
    } catch (const driver_error& e) {
        if (lacks_memory(e.code())) last_failure::of_this_thread().allocation.reset();
        return fail(code_of(e.code()), e.what());
    } catch (const not_admitted& e) {
        return fail(TENURE_NOT_ADMITTED, e.what());
    } catch (const arena_config_error& e) {
        return fail(TENURE_INVALID_CONFIGURATION, e.what());
    } catch (const std::invalid_argument& e) { // options, sizes, policies
        return fail(TENURE_INVALID_CONFIGURATION, e.what());
    } catch (const std::bad_alloc&) {
        return fail(TENURE_HOST_MEMORY, "the host has no memory left");
    } catch (const std::exception& e) {
        return fail(TENURE_INTERNAL, e.what());
    } catch (...) {
        return fail(TENURE_INTERNAL, "unknown error");
    }
}

/// While it lives, misuse that this thread reports is kept here instead of going to the misuse handler.
class misuse_catcher {
  public:
    misuse_catcher() noexcept : scope_(&keep, this) {}

    /// Returns: the code of what was caught, or TENURE_OK.
    [[nodiscard]] tenure_code code() const noexcept { return caught_ ? fail(*caught_) : TENURE_OK; }

  private:
    static bool keep(misuse& m, void* context) noexcept {
        static_cast<misuse_catcher*>(context)->caught_ = m;
        return false;
    }

    std::optional<misuse> caught_;
    misuse_scope scope_;
};

} // namespace tenure::c
