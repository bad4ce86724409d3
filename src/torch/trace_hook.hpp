#pragma once

/// \file
/// `trace_hook<Listener>`: the ear in torch's GPU trace.
///
///     torch --GPUTrace--> trace_hook --+--> listener: events, streams, host waits
///                                      +--> whoever was there before (the CUDA sanitizer): everything
///
/// Torch tells one interpreter of what it does with events and streams, for its sanitizer. `listen` puts this hook in that
/// interpreter's place and passes everything on. `GPUTrace::set_trace` is not used: it works once in a process, and would
/// shut the sanitizer out. A sanitizer that comes later takes the place through it, and from then on nothing is heard
/// here any more: neither records nor waits, which is safe.
///
/// The listener has `fresh(event)`, `recorded(event, stream)`, `waited(stream, event)`, `host_waits(event)`,
/// `host_waits(stream)` and `host_waits()`; none throws.
///
/// Invariants: the listener hears a call before whoever was there, whose code is Python and may do anything; it hears of
/// CUDA devices only. A hook that listens lives for ever: threads are traced to the very end of the process.
/// Cost: a virtual call more a traced call. Thread-safety: that of the listener; Python's lock is not needed.

#include <tenure/core/handles.hpp>

#include <c10/core/TensorImpl.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/core/impl/PyInterpreter.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tenure::torch {

template <class Listener>
class trace_hook final : public c10::impl::PyInterpreterVTable {
    using kind = c10::DeviceType;
    using tensor = c10::TensorImpl;

  public:
    /// `former`: whom to pass everything on to; null: nobody.
    explicit trace_hook(Listener& listener, const c10::impl::PyInterpreter* former = nullptr) noexcept
        : listener_(&listener), former_(former) {}

    /// Effects: `listener` hears all that torch traces from now on, until the end of the process.
    static void listen(Listener& listener) {
        using c10::impl::GPUTrace;
        const auto* const hook = new trace_hook(listener, GPUTrace::get_trace());
        GPUTrace::gpuTraceState.store(new c10::impl::PyInterpreter(hook), std::memory_order_release);
        GPUTrace::haveState = true;
    }

    // ---- the trace ----

    void trace_gpu_event_creation(kind k, std::uintptr_t event) const override {
        if (k == c10::kCUDA) listener_->fresh(event_of(event));
        if (former_ != nullptr) (*former_)->trace_gpu_event_creation(k, event);
    }
    void trace_gpu_event_deletion(kind k, std::uintptr_t event) const override {
        if (k == c10::kCUDA) listener_->fresh(event_of(event));
        if (former_ != nullptr) (*former_)->trace_gpu_event_deletion(k, event);
    }
    void trace_gpu_event_record(kind k, std::uintptr_t event, std::uintptr_t stream) const override {
        if (k == c10::kCUDA) listener_->recorded(event_of(event), stream_of(stream));
        if (former_ != nullptr) (*former_)->trace_gpu_event_record(k, event, stream);
    }
    void trace_gpu_event_wait(kind k, std::uintptr_t event, std::uintptr_t stream) const override {
        if (k == c10::kCUDA) listener_->waited(stream_of(stream), event_of(event));
        if (former_ != nullptr) (*former_)->trace_gpu_event_wait(k, event, stream);
    }
    void trace_gpu_device_synchronization(kind k) const override {
        if (k == c10::kCUDA) listener_->host_waits();
        if (former_ != nullptr) (*former_)->trace_gpu_device_synchronization(k);
    }
    void trace_gpu_stream_synchronization(kind k, std::uintptr_t stream) const override {
        if (k == c10::kCUDA) listener_->host_waits(stream_of(stream));
        if (former_ != nullptr) (*former_)->trace_gpu_stream_synchronization(k, stream);
    }
    void trace_gpu_event_synchronization(kind k, std::uintptr_t event) const override {
        if (k == c10::kCUDA) listener_->host_waits(event_of(event));
        if (former_ != nullptr) (*former_)->trace_gpu_event_synchronization(k, event);
    }
    void trace_gpu_memory_allocation(kind k, std::uintptr_t p) const override {
        if (former_ != nullptr) (*former_)->trace_gpu_memory_allocation(k, p);
    }
    void trace_gpu_memory_deallocation(kind k, std::uintptr_t p) const override {
        if (former_ != nullptr) (*former_)->trace_gpu_memory_deallocation(k, p);
    }
    void trace_gpu_stream_creation(kind k, std::uintptr_t stream) const override {
        if (former_ != nullptr) (*former_)->trace_gpu_stream_creation(k, stream);
    }

    std::string name() const override { return "tenure"; }

    // ---- what only an interpreter of Python is asked ----

    void incref(PyObject*) const override { no_python(); }
    void decref(PyObject*) const override { no_python(); }
    bool try_incref(const c10::impl::PyObjectSlot&) const override { no_python(); }
    std::size_t refcnt(PyObject*) const override { no_python(); }
    c10::intrusive_ptr<tensor> detach(const tensor*) const override { no_python(); }
    void dispatch(const c10::OperatorHandle&, ::torch::jit::Stack*) const override { no_python(); }
    void reportErrorCallback(PyObject*, c10::DispatchKey) const override { no_python(); }
    void python_op_registration_trampoline(const c10::OperatorHandle&, c10::DispatchKey, c10::DispatchKeySet,
                                           ::torch::jit::Stack*, bool, bool) const override {
        no_python();
    }
    void throw_abstract_impl_not_imported_error(std::string, const char*, const char*) const override {
        no_python();
    }
    void python_dispatcher(const c10::OperatorHandle&, c10::DispatchKeySet,
                           ::torch::jit::Stack*) const override {
        no_python();
    }
    bool is_contiguous(const tensor*, c10::MemoryFormat) const override { no_python(); }
    c10::SymBool sym_is_contiguous(const tensor*, c10::MemoryFormat) const override { no_python(); }
    bool is_strides_like(const tensor*, c10::MemoryFormat) const override { no_python(); }
    bool is_non_overlapping_and_dense(const tensor*) const override { no_python(); }
    c10::Device device(const tensor*) const override { no_python(); }
    std::int64_t dim(const tensor*) const override { no_python(); }
    c10::IntArrayRef strides(const tensor*) const override { no_python(); }
    c10::IntArrayRef sizes(const tensor*) const override { no_python(); }
    c10::SymIntArrayRef sym_sizes(const tensor*) const override { no_python(); }
    c10::Layout layout(const tensor*) const override { no_python(); }
    std::int64_t numel(const tensor*) const override { no_python(); }
    c10::SymInt sym_numel(const tensor*) const override { no_python(); }
    c10::SymIntArrayRef sym_strides(const tensor*) const override { no_python(); }
    c10::SymInt sym_storage_offset(const tensor*) const override { no_python(); }
    void reset_backward_hooks(const tensor*) const override { no_python(); }

  private:
    [[noreturn]] static void no_python() { TORCH_CHECK(false, "tenure listens to the GPU trace only"); }

    static event_handle event_of(std::uintptr_t event) noexcept {
        return reinterpret_cast<event_handle>(event);
    }
    static stream_handle stream_of(std::uintptr_t stream) noexcept {
        return reinterpret_cast<stream_handle>(stream);
    }

    Listener* listener_;
    const c10::impl::PyInterpreter* former_;
};

} // namespace tenure::torch
