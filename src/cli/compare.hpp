#pragma once

/// \file
/// `tenure compare`: replays traces through policies and shows them side by side.
///
/// The order of things is what keeps half-done output from ever appearing: read and check all input, replay
/// everything, and only then write, the JSON first. Memory grows with all traces together.

#include <tenure/core/error.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace tenure::cli {

/// An H200's memory, bytes.
inline constexpr std::size_t simulated_capacity = std::size_t{141} << 30;

/// The command line, word for word.
struct compare_options {
    std::vector<std::string> traces;
    std::string policies = "all";
    std::string device = "sim";
    std::size_t capacity = simulated_capacity; ///< bytes, of the simulated device
    std::size_t limit = no_limit;              ///< bytes
    unsigned repeat = 3;
    bool verify = false;
    bool costs = false;
    std::string report; ///< a page of HTML; "-": stdout, as with JSON; empty: none
    std::string json;   ///< a file; "-": stdout, which then carries nothing else; empty: none
    bool quiet = false;
};

/// How a run of the program ends.
enum exit_code : int {
    all_completed = 0,
    internal_failure = 1, ///< a policy broke a promise, or lost a block's content: never the user's fault
    bad_usage = 2,        ///< or bad input
    some_refused = 3,     ///< every replay ran to its end, but some allocations were refused
    gpu_failed = 4,       ///< the GPU or its driver, so nothing is said of the policies
};

/// Returns: `all_completed`, `some_refused`, or `internal_failure` when a verified replay found a wrong content, which
/// stderr then names. Throws: `usage_error`, `input_error`, `replay_error`, `device_failure`.
exit_code compare(const compare_options& options);

/// The program: reads the command line, runs, and turns every failure into one line on stderr and an exit
/// code.
int run(int argc, const char* const* argv);

} // namespace tenure::cli
