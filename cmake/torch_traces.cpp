// Compiles if torch's GPU trace is the one that `trace_hook` implements.

#include "trace_hook.hpp"

namespace {
struct deaf {
    void fresh(tenure::event_handle) noexcept {}
    void recorded(tenure::event_handle, tenure::stream_handle) noexcept {}
    void waited(tenure::stream_handle, tenure::event_handle) noexcept {}
    void host_waits(tenure::event_handle) noexcept {}
    void host_waits(tenure::stream_handle) noexcept {}
    void host_waits() noexcept {}
};
} // namespace

template class tenure::torch::trace_hook<deaf>;
