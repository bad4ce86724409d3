#pragma once

/// \file
/// Two policies with a bug that a replay must find, and that nothing but the order of streams gives away: both keep their
/// books right, and neither ever hands out a block that has not been freed.
///
/// `hasty_pool` takes every stream for one: memory freed on a stream serves all others at once.
/// `forgetful_pool` does not hear of uses on other streams.
///
/// Thread-safe, as what they are made of.

#include <tenure/policy/best_fit_pool.hpp>
#include <tenure/resource/resource.hpp>

#include <cstddef>

namespace tenure::test {

template <device Device>
class hasty_pool : public best_fit_pool<Device> {
  public:
    using sound = best_fit_pool<Device>;
    using sound::sound;

    void* allocate(stream_handle, std::size_t n, std::size_t a) {
        return sound::allocate(default_stream, n, a);
    }
    allocate_result try_allocate(stream_handle, std::size_t n, std::size_t a) noexcept {
        return sound::try_allocate(default_stream, n, a);
    }
    void deallocate(stream_handle, void* p, std::size_t n, std::size_t a) noexcept {
        sound::deallocate(default_stream, p, n, a);
    }
    deallocate_result try_deallocate(stream_handle, void* p, std::size_t n, std::size_t a) noexcept {
        return sound::try_deallocate(default_stream, p, n, a);
    }
};

template <device Device>
class forgetful_pool : public best_fit_pool<Device> {
  public:
    using sound = best_fit_pool<Device>;
    using sound::sound;

    void record_use(void*, stream_handle) noexcept {}
};

} // namespace tenure::test
