#pragma once

/// \file
/// `arena_memory`: an arena of any policy, behind one interface, so that the policy can be chosen at run time.
///
/// A model adds nothing to the arena but the virtual call (about 1 ns). Thread-safety: that of the arena.

#include <tenure/core/error.hpp>
#include <tenure/core/handles.hpp>
#include <tenure/resource/resource.hpp>
#include <tenure/resource/usage.hpp>
#include <tenure/tenancy/arena.hpp>
#include <tenure/tenancy/meter.hpp>

#include <cstddef>
#include <string>
#include <utility>

namespace tenure::torch {

class arena_memory {
  public:
    virtual ~arena_memory() = default;

    /// See `resource`: `try_allocate`, and `deallocate` of a block of `bytes` bytes as asked.
    virtual allocate_result allocate(stream_handle stream, std::size_t bytes) noexcept = 0;
    virtual void deallocate(stream_handle stream, void* p, std::size_t bytes) noexcept = 0;

    /// See `resource`: a block that every stream may use at once, and its free when all work on it is over.
    virtual allocate_result allocate_settled(std::size_t bytes) noexcept = 0;
    virtual void deallocate_settled(void* p, std::size_t bytes) noexcept = 0;

    [[nodiscard]] virtual usage_counters usage() const = 0;
    [[nodiscard]] virtual memory_snapshot snapshot() const = 0;
    [[nodiscard]] virtual bool validate() const noexcept = 0;
    virtual std::size_t trim(std::size_t bytes_to_keep) = 0;

    [[nodiscard]] virtual meter_reading limits() const noexcept = 0;
    /// Effects: the limit from now on; `give_back`: free memory above it goes back at once.
    /// Returns: bytes by which the arena is over it.
    virtual std::size_t set_max(std::size_t bytes, bool give_back) = 0;

    /// Returns: whether all free memory, wherever it lies, can serve one request.
    [[nodiscard]] virtual bool joins_free_memory() const noexcept = 0;
};

template <template <class> class Policy, device Device>
class arena_memory_of final : public arena_memory {
  public:
    using options = typename Policy<metered<Device>>::options_type;

    arena_memory_of(Device& device, std::string name, std::size_t max, options policy)
        : arena_(
              device,
              {.name = std::move(name), .max = max, .at_destruction = leftovers::release, .on_pressure = {}},
              std::move(policy)) {}

    allocate_result allocate(stream_handle stream, std::size_t bytes) noexcept override {
        return arena_.try_allocate(stream, bytes, block_alignment);
    }
    void deallocate(stream_handle stream, void* p, std::size_t bytes) noexcept override {
        arena_.deallocate(stream, p, bytes, block_alignment);
    }

    allocate_result allocate_settled(std::size_t bytes) noexcept override {
        try {
            return arena_.allocate_sync(bytes, block_alignment);
        } catch (const out_of_memory& e) {
            return e.failure();
        } catch (...) { // the driver, or host memory
            allocation_failure f;
            f.requested = f.rounded = bytes;
            f.cause = failure_cause::driver;
            f.driver_status = status::failed;
            return f;
        }
    }
    void deallocate_settled(void* p, std::size_t bytes) noexcept override {
        arena_.deallocate_sync(p, bytes, block_alignment);
    }

    [[nodiscard]] usage_counters usage() const override { return arena_.usage(); }
    [[nodiscard]] memory_snapshot snapshot() const override { return arena_.snapshot(); }
    [[nodiscard]] bool validate() const noexcept override { return arena_.validate(); }
    std::size_t trim(std::size_t bytes_to_keep) override { return arena_.trim(bytes_to_keep); }
    [[nodiscard]] meter_reading limits() const noexcept override { return arena_.limits(); }
    std::size_t set_max(std::size_t bytes, bool give_back) override {
        return give_back ? arena_.set_max(bytes) : arena_.node().set_max(bytes);
    }

    [[nodiscard]] bool joins_free_memory() const noexcept override {
        if constexpr (requires(Policy<metered<Device>> & p) { p.remaps(); })
            return const_cast<arena<Policy, Device>&>(arena_).policy().remaps();
        else
            return false;
    }

  private:
    static constexpr std::size_t block_alignment = 512; ///< bytes; torch's kernels count on it

    arena<Policy, Device> arena_;
};

} // namespace tenure::torch
