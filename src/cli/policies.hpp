#pragma once

/// \file
/// The policies by the names that a command line gives them.
///
///     SPEC[,SPEC...] | all          SPEC = NAME[:option=value[:option=value...]]
///
/// Inside brackets, commas and colons belong to the value: `caching:roundup_power2_divisions=[256:1,>:4]`.
///
/// Everything that the program knows of a policy stands in one file, `policy_NAME.cpp`: the pool's type, its
/// options and their help. A new policy is such a file and a line in `families()`.
///
/// Thread-safety: thread-compatible.

#include "errors.hpp"
#include "replay_result.hpp"
#include "trace.hpp"

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tenure::cli {

/// A policy with its options, ready to replay any number of traces.
class policy {
  public:
    virtual ~policy() = default;

    /// Throws: `replay_error`.
    [[nodiscard]] virtual replay_result replay(const trace& t, const replay_options& options) const = 0;

    /// Effects: sets an option. Throws: `usage_error` if there is none of that name or the value does not
    /// fit.
    virtual void set(std::string_view option, std::string_view value) = 0;

    /// Throws: `usage_error` if the options contradict each other.
    virtual void check() const = 0;
};

/// A policy before its options are known.
struct policy_family {
    const char* name;
    const char* help;
    std::function<std::unique_ptr<policy>()> make; ///< with its default options
    std::string options_help;                      ///< a line an option
    bool in_all = true;                            ///< whether `all` means it, too
};

/// Returns: all that can be named, in the order in which `all` means them.
const std::vector<policy_family>& families();

/// Effects: one more can be named, for programs that compare a policy of their own. Requires: nothing has been parsed.
void add_family(policy_family family);

/// A policy under the name that the user gave it.
struct named_policy {
    std::string spec;
    std::unique_ptr<policy> run;
};

/// Throws: `usage_error`, which lists what is known.
std::vector<named_policy> parse_policies(std::string_view list);

/// Returns: names and options for `--help`.
std::string policies_help();

// One function a file.
policy_family best_fit_family();
policy_family buddy_family();
policy_family slab_family();
policy_family caching_family();
policy_family async_family();
policy_family remap_family();
policy_family binned_family();
policy_family fronted_best_fit_family();
policy_family fronted_caching_family();
policy_family fronted_remap_family();

} // namespace tenure::cli
