#pragma once

/// \file
/// `policy_of<Pool, Options>`: makes a pool's class template and a table of its options into a `policy`, for the
/// simulated device and, in a build with CUDA, for a GPU.
///
/// A trace is replayed through the bare pool, or through an arena around it where bytes are limited or the
/// trace names arenas, so that a comparison without limits measures nothing but the policy.

#include "option_entry.hpp"
#include "policies.hpp"
#include "replay.hpp"

#if defined(TENURE_HAVE_CUDA)
#include "gpu/gpu_replay.hpp"
#endif

#include <tenure/tenancy/arena.hpp>

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tenure::cli {

template <template <class> class Pool, class Options>
class policy_of final : public policy {
  public:
    using table = std::vector<option_entry<Options>>;

    policy_of(const char* name, const table& known, late_free late)
        : name_(name), known_(&known), late_(late) {}

    [[nodiscard]] replay_result replay(const trace& t, const replay_options& how) const override {
        const bool limited = how.limit != no_limit || t.names_arenas || t.sets_limits;
#if defined(TENURE_HAVE_CUDA)
        if (how.gpu != nullptr) {
            using bare = clocked<Pool<timed_gpu>>;
            using tenant = clocked<arena<Pool, timed_gpu>>;
            if (limited) return replay_on<tenant>(*how.gpu, t, tenants_of<tenant>(t, how), how, late_);
            return replay_on<bare>(*how.gpu, t, one_pool<bare>(), how, late_);
        }
#endif
        using bare = Pool<sim::device>;
        using tenant = arena<Pool, sim::device>;
        if (limited) return cli::replay<tenant>(t, tenants_of<tenant>(t, how), how, late_);
        return cli::replay<bare>(t, one_pool<bare>(), how, late_);
    }

    void set(std::string_view option, std::string_view value) override {
        for (const option_entry<Options>& o : *known_) {
            if (option != o.name) continue;
            try {
                return o.set(options_, value);
            } catch (const std::invalid_argument& e) {
                throw usage_error("option " + std::string(option) + " of policy " + name_ + ": " + e.what());
            }
        }
        std::string known;
        for (const option_entry<Options>& o : *known_) known += " " + o.name;
        throw usage_error("policy " + std::string(name_) + " has no option \"" + std::string(option) +
                          "\" (known:" + known + ")");
    }

    void check() const override {
        try {
            sim::device nowhere;
            const Pool<sim::device> pool(nowhere,
                                         options_); // whoever takes the options knows what they may be
        } catch (const std::invalid_argument& e) {
            throw usage_error(std::string("policy ") + name_ + ": " + e.what());
        }
    }

  private:
    template <class Bare>
    auto one_pool() const {
        return [this](auto& device) {
            tenants<Bare> pools;
            pools.push_back(std::make_unique<Bare>(device, options_));
            return pools;
        };
    }

    template <class Tenant>
    auto tenants_of(const trace& t, const replay_options& how) const {
        return [this, &t, &how](auto& device) {
            tenants<Tenant> pools;
            for (const std::string& name : t.arenas) {
                arena_options tenant;
                tenant.name = name.empty() ? t.name : name;
                tenant.max = how.limit;
                pools.push_back(std::make_unique<Tenant>(device, std::move(tenant), options_));
            }
            return pools;
        };
    }

    const char* name_;
    const table* known_;
    late_free late_;
    Options options_{};
};

/// Requires: `table` lives as long as the program.
template <template <class> class Pool, class Options>
policy_family family_of(const char* name, const char* help, const std::vector<option_entry<Options>>& table,
                        late_free late = late_free::held) {
    return {name, help,
            [name, late, &table]() -> std::unique_ptr<policy> {
                return std::make_unique<policy_of<Pool, Options>>(name, table, late);
            },
            options_help(table)};
}

} // namespace tenure::cli
