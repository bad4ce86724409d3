#pragma once

/// \file
/// `gpu_machine`: the hands of a replay's program on a GPU (a machine in the sense of `program_world`).
///
/// Stream 0 of a trace is the legacy default stream, as in the programs that were recorded. All others are non-blocking
/// streams: nothing but events puts them in an order, with each other or with stream 0, so what the policy does not
/// order really races.
///
/// A hold is a kernel that watches a word of pinned host memory. Before the host waits for anything (`before_waiting`:
/// the program's own waits, and the allocator's, `cudaFree` among them) all holds are ended, since the host could not
/// end them while it waits. That is what happens in a real program, too: who has waited for the device has seen every
/// use of every block pass. A launch into a full queue waits as well, unseen; so no hold lasts longer than `longest`.
///
/// A replay on a GPU runs as fast as the host can: the times of the trace are not kept.
///
/// Externally synchronised.

#include "../errors.hpp"
#include "gpu.hpp"
#include "kernels.hpp"

#include <tenure/core/handles.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tenure::cli {

class gpu_machine {
  public:
    static constexpr std::chrono::microseconds longest{20'000};

    /// `holds`: how many there will be in all.
    gpu_machine(gpu_device& gpu, std::size_t holds) : gpu_(&gpu), holds_(holds) {
        if (holds == 0) return;
        must(cudaHostAlloc(reinterpret_cast<void**>(&words_), holds * sizeof *words_, cudaHostAllocDefault),
             "allocating pinned memory");
        for (std::size_t i = 0; i < holds; ++i) words_[i] = 0;
    }
    gpu_machine(const gpu_machine&) = delete;
    gpu_machine& operator=(const gpu_machine&) = delete;
    ~gpu_machine() {
        before_waiting();
        (void)cudaDeviceSynchronize(); // the kernels read the words
        if (words_ != nullptr) (void)cudaFreeHost(words_);
    }

    [[nodiscard]] cuda::device& device() const noexcept { return gpu_->device(); }

    /// The allocator's calls are counted elsewhere: it stands on a `timed_device`.
    template <class F>
    void as_program(F&& calls) {
        calls();
    }

    [[nodiscard]] stream_handle create_stream() {
        stream_handle s = nullptr;
        must(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "creating a stream");
        return s;
    }
    void destroy_stream(stream_handle s) { must(cudaStreamDestroy(s), "destroying a stream"); }

    void launch(stream_handle s, std::chrono::microseconds length) {
        must(gpu::spin(s, length), "launching work");
    }

    void hold(stream_handle s) {
        if (used_ == holds_) throw replay_error("more holds than the trace has late completions");
        must(gpu::hold(s, words_ + used_, longest), "holding a stream");
        active_.push_back({s, used_++});
    }
    void finish_oldest(stream_handle s) {
        const auto it =
            std::find_if(active_.begin(), active_.end(), [s](const held& h) { return h.stream == s; });
        if (it == active_.end()) return;
        end(*it); // a wait may have done so
        active_.erase(it);
    }

    void advance_to(std::chrono::microseconds) noexcept {}

    void before_waiting() noexcept {
        for (const held& h : active_) end(h);
    }

  private:
    struct held {
        stream_handle stream;
        std::size_t word;
    };

    void end(const held& h) noexcept {
        std::atomic_ref<std::uint32_t>(words_[h.word]).store(1, std::memory_order_release);
    }

    gpu_device* gpu_;
    std::size_t holds_;
    std::uint32_t* words_ = nullptr;
    std::size_t used_ = 0;
    std::vector<held> active_;
};

} // namespace tenure::cli
