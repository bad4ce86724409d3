#pragma once

/// \file
/// Errors as typed values with context.
///
/// Two families, and nothing between them:
///
///   * an **allocation failure** is an answer: `try_allocate` returns it, `allocate` throws it. It says what was
///     asked, who refused and why, and what would have helped.
///   * **misuse** is a bug in the caller (a foreign pointer, a double free): `deallocate` cannot throw, so it is
///     handed to the process's misuse handler, and nothing else happens. A misused pointer is never freed: its
///     real owner, if there is one, keeps it.
///
/// Both are plain data without owned memory, so that reporting an error can never fail for lack of memory.
/// Thread-safety: values are thread-compatible; the misuse handler may be set and called from any thread.

#include <tenure/core/status.hpp>
#include <tenure/core/units.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tenure {

/// "No limit" wherever a limit in bytes is given.
inline constexpr std::size_t no_limit = std::numeric_limits<std::size_t>::max();

/// A name of bounded length held inline (an arena's path). Longer texts are cut at the end.
class short_text {
  public:
    short_text() noexcept = default;
    explicit short_text(std::string_view text) noexcept
        : size_(text.size() < capacity ? text.size() : capacity) {
        if (size_ != 0) std::memcpy(chars_.data(), text.data(), size_);
    }
    [[nodiscard]] std::string_view view() const noexcept { return {chars_.data(), size_}; }
    [[nodiscard]] bool empty() const noexcept { return size_ == 0; }

  private:
    static constexpr std::size_t capacity = 95;
    std::array<char, capacity> chars_{};
    std::size_t size_ = 0;
};

/// Why an allocation failed.
enum class failure_cause : std::uint8_t {
    arena_limit,       ///< the arena's own `max`
    ancestor_limit,    ///< the `max` of an arena above it
    device,            ///< the device itself has no memory left
    fragmentation,     ///< enough free bytes in all, no free block that is large enough
    stream_pending,    ///< enough free bytes, but other streams' work still has to pass
    capture,           ///< it would need something that an active graph capture forbids
    invalid_alignment, ///< not a power of two, or larger than `max_alignment`
    driver,            ///< the driver failed for another reason, see `driver_status`
};

constexpr const char* to_string(failure_cause c) noexcept {
    switch (c) {
    case failure_cause::arena_limit: return "arena_limit";
    case failure_cause::ancestor_limit: return "ancestor_limit";
    case failure_cause::device: return "device";
    case failure_cause::fragmentation: return "fragmentation";
    case failure_cause::stream_pending: return "stream_pending";
    case failure_cause::capture: return "capture";
    case failure_cause::invalid_alignment: return "invalid_alignment";
    case failure_cause::driver: return "driver";
    }
    return "unknown";
}

/// All that is known about a failed allocation. Sizes in bytes.
struct allocation_failure {
    std::size_t requested = 0; ///< as asked
    std::size_t rounded = 0;   ///< as the policy would have had to take it
    failure_cause cause = failure_cause::device;
    status driver_status = status::ok; ///< the device's answer that ended the search
    short_text arena{};                ///< path of the arena that refused; empty if none did
    std::size_t used = 0;              ///< charged to that arena (or used of the device)
    std::size_t min = 0;               ///< its guarantee
    std::size_t max = no_limit;        ///< its limit (or the device's capacity)
    std::size_t free_bytes = 0;        ///< held by the policy and free
    std::size_t largest_free = 0;      ///< the largest free block usable for this request's stream
    std::size_t pending = 0;           ///< freed, but still waiting for work on a stream

    /// Returns: one line for a person. Begins with "out of memory" for memory reasons.
    [[nodiscard]] std::string text() const {
        std::string s;
        const bool memory = cause != failure_cause::invalid_alignment && cause != failure_cause::driver;
        s += memory ? "out of memory: tried to allocate " : "allocation failed: tried to allocate ";
        s += format_bytes(requested);
        s += " (" + std::to_string(requested) + " B, rounded " + std::to_string(rounded) + " B); cause ";
        s += to_string(cause);
        if (driver_status != status::ok) s += std::string(", device said ") + to_string(driver_status);
        if (!arena.empty()) s += "; arena \"" + std::string(arena.view()) + "\"";
        if (max != no_limit) s += "; used " + format_bytes(used) + " of max " + format_bytes(max);
        if (min != 0) s += ", min " + format_bytes(min);
        s += "; free in the pool " + format_bytes(free_bytes) + ", largest free block " +
             format_bytes(largest_free) + ", pending on streams " + format_bytes(pending);
        return s;
    }
};

/// Thrown by `allocate` when memory is what is missing. Copyable without throwing.
class out_of_memory : public std::bad_alloc {
  public:
    explicit out_of_memory(const allocation_failure& failure) noexcept : failure_(failure) {
        try {
            const std::string text = failure.text();
            std::snprintf(text_.data(), text_.size(), "%s", text.c_str());
        } catch (...) { // the text is a courtesy; the failure itself is complete without it
            std::snprintf(text_.data(), text_.size(), "out of memory: %s", to_string(failure.cause));
        }
    }
    [[nodiscard]] const char* what() const noexcept override { return text_.data(); }
    [[nodiscard]] const allocation_failure& failure() const noexcept { return failure_; }

  private:
    allocation_failure failure_;
    std::array<char, 640> text_{};
};

/// Thrown by `allocate` for an alignment that no policy can give.
class invalid_alignment : public std::invalid_argument {
  public:
    explicit invalid_alignment(const allocation_failure& failure)
        : std::invalid_argument(failure.text()), failure_(failure) {}
    [[nodiscard]] const allocation_failure& failure() const noexcept { return failure_; }

  private:
    allocation_failure failure_;
};

/// Thrown when the driver fails for another reason than memory. Recovery is the application's.
class driver_error : public std::runtime_error {
  public:
    driver_error(status s, const std::string& text)
        : std::runtime_error(text + " (" + to_string(s) + ")"), status_(s) {}
    [[nodiscard]] status code() const noexcept { return status_; }

  private:
    status status_;
};

/// Throws the exception type that belongs to `failure`.
[[noreturn]] inline void throw_failure(const allocation_failure& failure) {
    if (failure.cause == failure_cause::invalid_alignment) throw invalid_alignment(failure);
    if (failure.cause == failure_cause::driver) throw driver_error(failure.driver_status, failure.text());
    throw out_of_memory(failure);
}

/// Kinds of misuse.
enum class misuse_kind : std::uint8_t {
    foreign_pointer,     ///< no memory of this resource
    wrong_arena,         ///< memory of another arena
    double_free,         ///< was this resource's, is free already
    interior_pointer,    ///< inside a live block, not its start
    size_mismatch,       ///< a live block, freed with another size than it was allocated with
    live_at_destruction, ///< a pool or arena destroyed with live blocks: `bytes` of them
    driver,              ///< not the caller's fault: the driver refused to take memory back
    overrun, ///< bytes behind a block were written, found at its free: `expected` is the offset of the first
};

constexpr const char* to_string(misuse_kind k) noexcept {
    switch (k) {
    case misuse_kind::foreign_pointer: return "foreign_pointer";
    case misuse_kind::wrong_arena: return "wrong_arena";
    case misuse_kind::double_free: return "double_free";
    case misuse_kind::interior_pointer: return "interior_pointer";
    case misuse_kind::size_mismatch: return "size_mismatch";
    case misuse_kind::live_at_destruction: return "live_at_destruction";
    case misuse_kind::driver: return "driver";
    case misuse_kind::overrun: return "overrun";
    }
    return "unknown";
}

/// One misuse. Sizes in bytes.
struct misuse {
    misuse_kind kind = misuse_kind::foreign_pointer;
    const void* pointer = nullptr;
    std::size_t bytes = 0; ///< as the caller gave them
    std::size_t expected =
        0;              ///< as recorded, for `size_mismatch`; number of blocks, for `live_at_destruction`
    short_text owner{}; ///< path of the arena that was addressed
    short_text real_owner{}; ///< path of the arena that owns the pointer, for `wrong_arena`
    status driver_status = status::ok;

    /// Returns: one line for a person.
    [[nodiscard]] std::string text() const {
        char head[96];
        std::snprintf(head, sizeof head, "misuse: %s: pointer %p, %zu bytes", to_string(kind), pointer,
                      bytes);
        std::string s = head;
        if (kind == misuse_kind::size_mismatch) s += ", allocated as " + std::to_string(expected) + " bytes";
        if (kind == misuse_kind::live_at_destruction)
            s += " in " + std::to_string(expected) + " blocks still live";
        if (kind == misuse_kind::overrun) s += ", written at offset " + std::to_string(expected);
        if (!owner.empty()) s += ", in arena \"" + std::string(owner.view()) + "\"";
        if (!real_owner.empty()) s += ", which belongs to arena \"" + std::string(real_owner.view()) + "\"";
        if (driver_status != status::ok) s += std::string(", device said ") + to_string(driver_status);
        return s;
    }
};

/// Called for every misuse, from the thread that made it, with none of the library's locks held.
using misuse_handler = void (*)(const misuse&) noexcept;

namespace detail {
inline void print_misuse(const misuse& m) noexcept {
    try {
        std::fprintf(stderr, "tenure: %s\n", m.text().c_str());
    } catch (...) {
        std::fprintf(stderr, "tenure: misuse: %s\n", to_string(m.kind));
    }
}
inline std::atomic<misuse_handler> current_misuse_handler{&print_misuse};
} // namespace detail

/// Effects: from now on misuse goes to `handler`; null restores the default, which prints one line to stderr.
/// Returns: the handler before.
inline misuse_handler set_misuse_handler(misuse_handler handler) noexcept {
    return detail::current_misuse_handler.exchange(handler ? handler : &detail::print_misuse);
}

/// While it lives, misuse reported from this thread passes through `refine(m, context)` first, so that an
/// owner can add what a part of it does not know (an arena its name), or say that it is none (by returning
/// false). Scopes nest; the innermost refines first.
class misuse_scope {
  public:
    using refiner = bool (*)(misuse&, void* context) noexcept;

    misuse_scope(refiner function, void* context) noexcept
        : refine_(function), context_(context), outer_(innermost()) {
        innermost() = this;
    }
    ~misuse_scope() { innermost() = outer_; }
    misuse_scope(const misuse_scope&) = delete;
    misuse_scope& operator=(const misuse_scope&) = delete;

    /// Returns: whether it is to be reported.
    static bool refine(misuse& m) noexcept {
        for (misuse_scope* s = innermost(); s != nullptr; s = s->outer_)
            if (!s->refine_(m, s->context_)) return false;
        return true;
    }

  private:
    static misuse_scope*& innermost() noexcept {
        thread_local misuse_scope* scope = nullptr;
        return scope;
    }
    refiner refine_;
    void* context_;
    misuse_scope* outer_;
};

/// Effects: hands `m` to the current handler.
inline void report_misuse(misuse m) noexcept {
    if (misuse_scope::refine(m)) detail::current_misuse_handler.load()(m);
}

} // namespace tenure
