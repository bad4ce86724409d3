#pragma once

/// \file
/// Memory of one process in another, in the format that torch's own allocator writes and reads.
///
///     byte 0   version, 2
///     byte 1   'c'  64 bytes of cudaIpcMemHandle_t: the whole cudaMalloc segment
///              'e'  {pid, bytes a handle, number} and a file descriptor a handle, all handles of the same size
///              't'  {pid, 0, number} and {descriptor, bytes} a handle: as 'e' for handles of different sizes; only
///                   this library reads it
///     64 bytes without the two in front: an older 'c'
///
/// | memory | how it travels |
/// |---|---|
/// | of `cudaMalloc`: policies `caching`, `best_fit`, and these fronted | 'c', always |
/// | mapped: `remap` | 'e', or 't' where a block lies in handles of different sizes; needs `share` |
/// | of driver pools: `async` | not at all: torch's format has no word for it |
///
/// Descriptors stay open in the sender as long as the handle lives, and are fetched from it by the receiver
/// (`pidfd_getfd`), which the kernel must allow (the same user, and no ptrace restriction between the two).
///
/// A handle is opened once in a process, however often it arrives, and closed when the last user has let go.
///
/// Thread-safety: thread-safe.

#include "gate.hpp"

#include <tenure/core/bits.hpp>
#include <tenure/device/cuda/descriptor.hpp>
#include <tenure/device/cuda/ipc.hpp>
#include <tenure/device/cuda_device.hpp>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>

#include <cuda_runtime_api.h>

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace tenure::torch::ipc {

inline constexpr char version = 2;
inline constexpr char kind_malloc = 'c';
inline constexpr char kind_handles = 'e';
inline constexpr char kind_mixed_handles = 't';

/// As torch lays it out; the gap after `pid` is written as zeros.
struct header {
    ::pid_t pid;
    std::size_t bytes; ///< of each handle
    std::size_t count;
};
static_assert(sizeof(header) == 24 && std::is_trivially_copyable_v<header>);

struct mixed_handle {
    std::int64_t descriptor;
    std::uint64_t bytes;
};

template <class T>
void put(std::string& to, const T& value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
T take(const std::string& from, std::size_t& at) {
    TORCH_CHECK(from.size() - at >= sizeof(T), "a handle from another process is too short");
    T value;
    std::memcpy(&value, from.data() + at, sizeof value);
    at += sizeof value;
    return value;
}

/// Returns: the block at p, `bytes` long, for other processes. Throws: `c10::Error` that says what to do.
inline c10::cuda::CUDACachingAllocator::ShareableHandle share(gate<cuda::device>& through, void* p,
                                                              std::size_t bytes) {
    cuda::device& d = through.upstream();
    const std::vector<extent> extents = through.extents(p, bytes);
    TORCH_CHECK(!extents.empty(), "tenure: this memory cannot be shared with another process: it is of a "
                                  "driver pool (policy async), or of "
                                  "a MemPool's own allocator. Install with policy=remap or policy=caching");
    const auto offset = static_cast<std::ptrdiff_t>(to_address(p) - extents.front().begin);
    std::string out{version};
    if (extents.front().memory == 0) {
        cudaIpcMemHandle_t handle{};
        const cuda::current_device here(d.ordinal(), d.only_one_device());
        C10_CUDA_CHECK(cudaIpcGetMemHandle(&handle, to_pointer(extents.front().begin)));
        out += kind_malloc;
        put(out, handle);
        return {offset, out};
    }
    TORCH_CHECK(
        d.shareable(),
        "tenure: this memory cannot be shared with another process, because it was installed with share=off, "
        "or the device has no shareable memory. Install with share=on, or with policy=caching");
    std::vector<int> descriptors;
    bool same = true;
    for (const extent& e : extents) {
        const auto fd = through.attached<cuda::descriptor>(e.memory, [&]() -> std::shared_ptr<void> {
            auto exported = cuda::export_memory(d, e.memory);
            TORCH_CHECK(exported.has_value(),
                        "tenure: the driver does not export this memory: ", to_string(exported.error()));
            return std::make_shared<cuda::descriptor>(std::move(*exported));
        });
        descriptors.push_back(fd->get());
        same = same && e.bytes == extents.front().bytes;
    }
    out += same ? kind_handles : kind_mixed_handles;
    header h;
    std::memset(static_cast<void*>(&h), 0, sizeof h);
    h.pid = ::getpid();
    h.bytes = same ? extents.front().bytes : 0;
    h.count = extents.size();
    put(out, h);
    for (std::size_t i = 0; i < extents.size(); ++i) {
        if (same)
            put(out, descriptors[i]);
        else
            put(out, mixed_handle{descriptors[i], extents[i].bytes});
    }
    return {offset, out};
}

/// Another process's handles, mapped in a row in this one.
class imported_range {
  public:
    struct part {
        int descriptor; ///< in the sender
        std::size_t bytes;
    };

    /// Throws: `c10::Error`, changing nothing.
    imported_range(cuda::device& d, ::pid_t sender, const std::vector<part>& parts) : device_(&d) {
        try {
            open(sender, parts);
        } catch (...) {
            close();
            throw;
        }
    }
    imported_range(const imported_range&) = delete;
    imported_range& operator=(const imported_range&) = delete;
    ~imported_range() {
        if (cuda::process_state() != status::ok) return;
        (void)device_->synchronize(); // nobody has said that work on it is over
        close();
    }
    [[nodiscard]] void* base() const noexcept { return base_; }

  private:
    void open(::pid_t sender, const std::vector<part>& parts) {
        for (const part& x : parts) total_ += x.bytes;
        const auto reserved = device_->reserve_address(total_, 0);
        TORCH_CHECK(reserved.has_value(),
                    "tenure: no addresses for another process's memory: ", to_string(reserved.error()));
        base_ = *reserved;
        for (const part& x : parts) {
            const cuda::descriptor fd = fetch(sender, x.descriptor);
            const auto handle = cuda::import_memory(*device_, fd, x.bytes);
            TORCH_CHECK(handle.has_value(),
                        "tenure: cannot import another process's memory: ", to_string(handle.error()));
            handles_.push_back(*handle);
            const status s = device_->map(static_cast<char*>(base_) + mapped_, *handle);
            TORCH_CHECK(s == status::ok, "tenure: cannot map another process's memory: ", to_string(s));
            mapped_ += x.bytes;
        }
        const status s = device_->set_access(base_, total_);
        TORCH_CHECK(s == status::ok, "tenure: no access to another process's memory: ", to_string(s));
    }

    void close() noexcept {
        if (mapped_ != 0) (void)device_->unmap(base_, mapped_);
        for (const memory_handle h : handles_) (void)device_->release_memory(h);
        if (base_ != nullptr) (void)device_->free_address(base_, total_);
    }

    static cuda::descriptor fetch(::pid_t sender, int number) {
        const cuda::descriptor process(static_cast<int>(::syscall(SYS_pidfd_open, sender, 0)));
        TORCH_CHECK(process.get() >= 0, "tenure: pidfd_open: ", std::strerror(errno),
                    " (is the process that shared the memory still there?)");
        const int mine = static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), number, 0));
        TORCH_CHECK(mine >= 0, "tenure: pidfd_getfd: ", std::strerror(errno),
                    " (the kernel must let this process trace the one that shared the memory: see "
                    "kernel.yama.ptrace_scope, or install with policy=caching, which needs no descriptor)");
        return cuda::descriptor(mine);
    }

    cuda::device* device_;
    void* base_ = nullptr;
    std::size_t total_ = 0;
    std::size_t mapped_ = 0;
    std::vector<memory_handle> handles_;
};

/// Memory of other processes that is open in this one.
class opened {
  public:
    /// Returns: the start of what the handle names, open as long as the pointer or a copy lives.
    std::shared_ptr<void> open(cuda::device& d, const std::string& handle) {
        const std::string key = std::to_string(d.ordinal()) + ':' + handle;
        const std::lock_guard lock(mutex_);
        if (const auto it = known_.find(key); it != known_.end())
            if (auto still = it->second.lock()) return still;
        std::shared_ptr<void> fresh = open_now(d, handle);
        for (auto it = known_.begin(); it != known_.end();)
            it = it->second.expired() ? known_.erase(it) : std::next(it);
        known_[key] = fresh;
        return fresh;
    }

  private:
    static std::shared_ptr<void> open_now(cuda::device& d, const std::string& handle) {
        std::size_t at = 0;
        if (handle.size() == sizeof(cudaIpcMemHandle_t))
            return open_malloc(d, take<cudaIpcMemHandle_t>(handle, at));
        TORCH_CHECK(
            handle.size() > 2 && handle[0] == version,
            "tenure: a handle from another process is of an unknown version; both processes need torch 2.11");
        at = 2;
        if (handle[1] == kind_malloc) return open_malloc(d, take<cudaIpcMemHandle_t>(handle, at));
        TORCH_CHECK(handle[1] == kind_handles || handle[1] == kind_mixed_handles,
                    "tenure: a handle from another process is of an unknown kind");
        const auto h = take<header>(handle, at);
        std::vector<imported_range::part> parts;
        for (std::size_t i = 0; i < h.count; ++i) {
            if (handle[1] == kind_handles) {
                parts.push_back({take<int>(handle, at), h.bytes});
            } else {
                const auto m = take<mixed_handle>(handle, at);
                parts.push_back({static_cast<int>(m.descriptor), m.bytes});
            }
        }
        const auto range = std::make_shared<imported_range>(d, h.pid, parts);
        return {range, range->base()};
    }

    static std::shared_ptr<void> open_malloc(cuda::device& d, const cudaIpcMemHandle_t& handle) {
        const cuda::current_device here(d.ordinal(), d.only_one_device());
        void* base = nullptr;
        C10_CUDA_CHECK(cudaIpcOpenMemHandle(&base, handle, cudaIpcMemLazyEnablePeerAccess));
        return {base, [&d](void* p) {
                    if (cuda::process_state() != status::ok) return;
                    const cuda::current_device there(d.ordinal(), d.only_one_device());
                    (void)cuda::settle(cudaIpcCloseMemHandle(p));
                }};
    }

    std::mutex mutex_;                                 ///< guards what follows
    std::map<std::string, std::weak_ptr<void>> known_; ///< by device and handle
};

} // namespace tenure::torch::ipc
