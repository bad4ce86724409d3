#pragma once

/// \file
/// What `tenure run` tells the library through the environment, and what the library tells the user.
///
/// | variable | meaning |
/// |---|---|
/// | `TENURE_RUN_LIMIT` | bytes that the program may hold on each device; none: no limit |
/// | `TENURE_RUN_POLICY` | the arena's policy, as `policy=` of an arena has it; `none`: no pool, only the limit |
/// | `TENURE_RUN_SUMMARY` | 1: at the end, a line for each device on stderr |
/// | `TENURE_PUBLISH` | 1: shown to `tenure top` |
///
/// A text that cannot be read is said on stderr, and the program ends with 127: a limit that is not kept is worse than
/// a program that does not start.

#include "../policies/policy_choice.hpp"

#include <tenure/core/error.hpp>
#include <tenure/core/units.hpp>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

#include <unistd.h>

namespace tenure::preload {

struct settings {
    std::size_t limit = no_limit; ///< bytes, a device
    policies::policy_choice policy{.name = "best_fit"};
    bool pooled = true;
    bool summary = false;

    static const settings& get() {
        static const settings& only = *new settings(read());
        return only;
    }

  private:
    static const char* variable(const char* name) noexcept {
        const char* const text = std::getenv(name);
        return text == nullptr ? "" : text;
    }

    static settings read() noexcept {
        settings s;
        try {
            const std::string_view limit = variable("TENURE_RUN_LIMIT");
            if (!limit.empty() && limit != "none") s.limit = parse_bytes(limit);
            const std::string_view policy = variable("TENURE_RUN_POLICY");
            s.pooled = policy != "none";
            if (!policy.empty() && s.pooled) s.policy = policies::parse_policy(policy);
            s.summary = std::string_view(variable("TENURE_RUN_SUMMARY")) == "1";
        } catch (const std::exception& e) {
            std::fprintf(stderr, "tenure run: %s\n", e.what());
            ::_exit(127);
        }
        return s;
    }
};

/// Something that the user should know, said once in the life of the process.
class notice {
  public:
    constexpr explicit notice(const char* text) noexcept : text_(text) {}
    void say() noexcept {
        if (!said_.exchange(true, std::memory_order_relaxed)) std::fprintf(stderr, "tenure run: %s\n", text_);
    }

  private:
    const char* text_;
    std::atomic<bool> said_{false};
};

} // namespace tenure::preload
