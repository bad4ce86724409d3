#pragma once

/// \file
/// `tenure_shared`: a block with a count of those who hold it, and the forms in which DLPack's consumers get it.
///
///     Python's Buffer --+
///     numpy's array   --+--> tenure_shared --> arena, stream, pointer
///     torch's tensor  --+
///
/// A consumer gets one piece of host memory: DLPack's struct, the numbers it points to, and which block it holds.
///
/// Invariants:
///   1. The block is freed once, by whoever lets go last, on any thread and in the middle of anything: no lock is held there
///      that its thread could hold already, and the thread's last failure stays what it was.
///   2. No stream is named whose owner may be gone: from `anywhere` on, a free waits for the whole device instead.
///   3. What cannot be freed now, because of a capture, is freed with a later one.
///
/// Thread-safety: thread-safe.

#include "failure.hpp"
#include "tenants.hpp"

#include <tenure/core/handles.hpp>
#include <tenure/tenure.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

struct tenure_shared {
    tenure_arena* arena = nullptr;
    void* stream = nullptr;
    void* pointer = nullptr;
    std::size_t bytes = 0;
    std::int32_t device_type = 0; ///< DLPack's
    std::int32_t ordinal = 0;
    std::atomic<std::size_t> holds{1};
    std::atomic<bool> anywhere{false};
    tenure_shared* next = nullptr; ///< among those that wait
};

namespace tenure::c {

inline stream_handle to_stream(void* s) noexcept {
    return static_cast<stream_handle>(s);
}

/// Frees the blocks that nobody holds.
class shared_blocks {
  public:
    static tenure_code let_go(tenure_shared& block) noexcept {
        if (block.holds.fetch_sub(1, std::memory_order_acq_rel) != 1) return TENURE_OK;
        const tenure_code code = free(block);
        retry();
        return code;
    }

    /// Effects: those that wait are tried again.
    static void retry() noexcept {
        if (waiting_.load(std::memory_order_relaxed) == nullptr) return;
        const untold quiet;
        tenure_shared* next = nullptr;
        for (tenure_shared* b = waiting_.exchange(nullptr); b != nullptr; b = next) {
            next = b->next;
            (void)free(*b);
        }
    }

  private:
    static tenure_code free(tenure_shared& block) noexcept {
        const tenure_code code = block.pointer == nullptr ? TENURE_OK : free_memory(block);
        // A full device may lack even what waiting for it takes; both may be had later.
        if (code == TENURE_CAPTURE || code == TENURE_OUT_OF_MEMORY) {
            block.next = waiting_.load();
            while (!waiting_.compare_exchange_weak(block.next, &block)) {
            }
        } else {
            delete &block;
        }
        return code;
    }

    static tenure_code free_memory(tenure_shared& block) noexcept {
        const inside here(block.arena, handle::arena);
        if (!here) return TENURE_OK; // the arena was destroyed, and the block with it
        resource_ref& memory = *block.arena->memory;
        const misuse_catcher caught;
        if (block.anywhere.load(std::memory_order_relaxed)) {
            if (const status s = block.arena->owner->inside->device().synchronize_all(); s != status::ok)
                return fail(s, "waiting for the device");
            memory.deallocate_sync(block.pointer, block.bytes);
        } else if (is_shared_handle(to_stream(block.stream)) && block.stream != nullptr) {
            memory.release(block.pointer); // another stream in each thread; the pool knows which it was
        } else {
            const deallocate_result r =
                memory.try_deallocate(to_stream(block.stream), block.pointer, block.bytes);
            return r ? TENURE_OK : fail(r.error());
        }
        return caught.code();
    }

    static inline constinit std::atomic<tenure_shared*> waiting_{nullptr};
};

namespace dlpack {

inline constexpr std::int32_t cpu = 1;
inline constexpr std::int32_t cuda = 2;

struct tensor {
    void* data = nullptr;
    std::int32_t device_type = 0;
    std::int32_t device_id = 0;
    std::int32_t dimensions = 0;
    std::uint8_t type_code = 0;
    std::uint8_t type_bits = 0;
    std::uint16_t type_lanes = 1;
    std::int64_t* shape = nullptr;
    std::int64_t* strides = nullptr;
    std::uint64_t byte_offset = 0;
};

/// DLManagedTensor, the form before DLPack 1.0.
struct managed {
    static constexpr char name[] = "dltensor";

    dlpack::tensor tensor{};
    void* context = nullptr;
    void (*deleter)(void* self) = nullptr;
};

/// DLManagedTensorVersioned.
struct versioned {
    static constexpr char name[] = "dltensor_versioned";

    std::uint32_t major = 1;
    std::uint32_t minor = 0;
    void* context = nullptr;
    void (*deleter)(void* self) = nullptr;
    std::uint64_t flags = 0;
    dlpack::tensor tensor{};
};

static_assert(sizeof(tensor) == 48 && sizeof(managed) == 64 && sizeof(versioned) == 80);

/// Returns: whether an array of that shape has a place in `bytes` bytes.
inline bool fits(std::size_t bytes, std::size_t item, std::int32_t dimensions,
                 const std::int64_t* shape) noexcept {
    std::size_t left = bytes / item;
    bool empty = false;
    for (std::int32_t i = 0; i < dimensions; ++i) {
        if (shape[i] < 0) return false;
        if (shape[i] == 0)
            empty = true;
        else
            left /= static_cast<std::size_t>(shape[i]);
    }
    return empty || left != 0;
}

/// Effects: the consumer's end. `self`: a `Form`, or null.
template <class Form>
void give_up(void* self) {
    if (self == nullptr) return;
    auto* const block = static_cast<tenure_shared*>(static_cast<Form*>(self)->context);
    std::free(self);
    const untold quiet;
    (void)shared_blocks::let_go(*block);
}

/// Returns: `described` with the numbers of the shape and of an array in C order, in one piece of `malloc`. It holds `block`.
/// Throws: `std::bad_alloc`.
template <class Form>
Form* made_for(tenure_shared& block, const tensor& described, const std::int64_t* shape) {
    const auto n = static_cast<std::size_t>(described.dimensions);
    void* const room = std::malloc(sizeof(Form) + 2 * n * sizeof(std::int64_t));
    if (room == nullptr) throw std::bad_alloc();
    auto* const form = new (room) Form;
    form->context = &block;
    form->deleter = &give_up<Form>;
    form->tensor = described;
    auto* const numbers = reinterpret_cast<std::int64_t*>(form + 1);
    form->tensor.shape = numbers;
    form->tensor.strides = numbers + n;
    std::uint64_t step = 1; // with a zero among them the shape may have any other numbers, too
    for (std::size_t i = n; i-- != 0;) {
        form->tensor.shape[i] = shape[i];
        form->tensor.strides[i] = static_cast<std::int64_t>(step);
        step *= static_cast<std::uint64_t>(shape[i]);
    }
    block.holds.fetch_add(1, std::memory_order_relaxed);
    return form;
}

using capsule_is_valid = int (*)(void* capsule, const char* name);
using capsule_pointer = void* (*)(void* capsule, const char* name);

/// Python's, given before there is a capsule.
inline constinit std::atomic<capsule_is_valid> python_is_valid{nullptr};
inline constinit std::atomic<capsule_pointer> python_pointer{nullptr};

/// The destructor of a capsule; whoever takes what is in one gives it another name. Called as here, Python's functions
/// leave alone the error that may be set.
inline void drop_capsule(void* capsule) {
    const capsule_is_valid is_valid = python_is_valid.load();
    const capsule_pointer pointer = python_pointer.load();
    if (is_valid(capsule, managed::name) != 0)
        give_up<managed>(pointer(capsule, managed::name));
    else if (is_valid(capsule, versioned::name) != 0)
        give_up<versioned>(pointer(capsule, versioned::name));
}

} // namespace dlpack
} // namespace tenure::c
