#pragma once

/// \file
/// Options as text, one "key=value" a line, as the C interface takes them.
///
/// What `install` reads of them itself is in `settings`; all the rest belongs to the policy, under the names that
/// `tenure compare` uses, and is checked by the policy's own table. Plain values; thread-compatible.

#include "../policies/policy_choice.hpp"

#include <tenure/core/error.hpp>
#include <tenure/core/units.hpp>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tenure::torch {

using policies::option;
using policies::parse_options;
using policies::policy_choice;

/// How memory is made fit for other processes (`torch.multiprocessing`).
enum class sharing {
    where_possible, ///< if the device can
    on,             ///< or fail
    off,            ///< only what any process can share without asking: memory of `cudaMalloc`
};

struct settings {
    policy_choice policy{};
    std::size_t limit = no_limit; ///< bytes a device may give to all arenas together
    sharing share = sharing::where_possible;
    bool waits = true; ///< whether torch's waits are listened to: see `told_waits`
    friend bool operator==(const settings&, const settings&) = default;

    /// What `install` starts from. A program of torch's runs long enough for small handles: what it holds counts, not how
    /// fast it got there.
    [[nodiscard]] static settings of_install() {
        settings s;
        s.policy.options = {{"tight", "on"}};
        return s;
    }
};

/// Returns: whether the option is on. Throws: `std::invalid_argument` if it is neither on nor off.
inline bool is_on(const option& o) {
    if (o.value == "on" || o.value == "off") return o.value == "on";
    throw std::invalid_argument("option " + o.key + ": \"" + o.value + "\" is neither on nor off");
}

/// Returns: the settings that `text` asks for; what it does not name is as in `defaults`. Options of the policy are kept
/// from the defaults only if the policy is the same. Throws: `std::invalid_argument`. The policy's options are not
/// looked at here.
inline settings parse_settings(std::string_view text, const settings& defaults = {}) {
    settings s = defaults;
    const std::vector<option> given = parse_options(text);
    for (const option& o : given) {
        if (o.key != "policy") continue;
        if (o.value != s.policy.name) s.policy.options.clear();
        s.policy.name = o.value;
    }
    for (const option& o : given) {
        if (o.key == "policy") continue;
        if (o.key == "limit") {
            s.limit = parse_bytes(o.value);
        } else if (o.key == "share") {
            s.share = is_on(o) ? sharing::on : sharing::off;
        } else if (o.key == "waits") {
            s.waits = is_on(o);
        } else {
            s.policy.options.push_back(o);
        }
    }
    return s;
}

} // namespace tenure::torch
