#pragma once

/// \file
/// What a failed allocation says, and to whom.
///
/// The text begins as torch's own does, because frameworks look for its phrases ("CUDA out of memory. Tried to
/// allocate"); what follows "tenure:" is this library's: whose limit it was, and what free memory there is in what
/// shape. Plain values; thread-compatible.

#include <tenure/core/error.hpp>
#include <tenure/core/units.hpp>

#include <array>
#include <cstddef>
#include <cstdio>
#include <string>

namespace tenure::torch {

/// Returns: `n` bytes as torch writes them: "1.50 GiB".
inline std::string torch_bytes(std::size_t n) {
    std::array<char, 32> text{};
    const auto in = [&](double unit, const char* name) {
        std::snprintf(text.data(), text.size(), "%.2f %s", static_cast<double>(n) / unit, name);
    };
    if (n <= 1024)
        std::snprintf(text.data(), text.size(), "%zu bytes", n);
    else if (n <= 1_MiB)
        in(1024.0, "KiB");
    else if (n <= 1_GiB)
        in(1024.0 * 1024.0, "MiB");
    else
        in(1024.0 * 1024.0 * 1024.0, "GiB");
    return text.data();
}

/// Bytes, as they were at the failure.
struct failure_report {
    int device = 0;
    std::size_t requested = 0;
    std::size_t device_total = 0;
    std::size_t device_free = 0;
    std::size_t allowed = no_limit; ///< what all arenas together may hold
    std::size_t allocated = 0;
    std::size_t in_private_pools = 0;
    std::size_t reserved = 0;
    allocation_failure reason{};

    /// What torch's observers are told as the total.
    [[nodiscard]] std::size_t allowed_or_total() const noexcept {
        return allowed == no_limit ? device_total : allowed;
    }

    [[nodiscard]] std::string text() const {
        std::string s = "CUDA out of memory. Tried to allocate " + torch_bytes(requested) + ". GPU " +
                        std::to_string(device) + " has a total capacity of " + torch_bytes(device_total) +
                        " of which " + torch_bytes(device_free) + " is free. ";
        if (allowed != no_limit) s += torch_bytes(allowed) + " allowed; ";
        s += "Of the allocated memory " + torch_bytes(allocated) + " is allocated by PyTorch, ";
        if (in_private_pools != 0)
            s +=
                "with " + torch_bytes(in_private_pools) + " allocated in private pools (e.g., CUDA Graphs), ";
        s += "and " + torch_bytes(reserved > allocated ? reserved - allocated : 0) +
             " is reserved by PyTorch but unallocated. tenure: " + reason.text();
        return s;
    }
};

} // namespace tenure::torch
