// What tenure_torch.h declares: a thin layer that turns exceptions into numbers and text.

#include "tenure_torch.h"

#include "alloc_conf.hpp"
#include "allocator.hpp"
#include "cuda_world.hpp"
#include "json.hpp"
#include "options.hpp"
#include "segment_source.hpp"

#ifdef TENURE_TORCH_TRACES
#include "told_waits.hpp"
#include "trace_hook.hpp"
#endif

#include <tenure/core/error.hpp>
#include <tenure/core/units.hpp>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>
#include <torch/headeronly/version.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

static_assert(TENURE_TORCH_NO_LIMIT == tenure::no_limit);

namespace tenure::torch {
namespace {

using cuda_allocator = allocator<cuda_world>;
using cuda_source = segment_source<cuda_world>;

/// Ids of sources have the highest bit, so that they are not mistaken for arenas.
constexpr std::uint64_t source_bit = std::uint64_t{1} << 63;

/// All state of the library. Never destroyed: torch frees tensors until the very end of the process.
struct library {
    cuda_world world;
    std::mutex mutex; ///< guards what follows, but for calls of what it points to
    cuda_allocator* installed = nullptr;
    std::array<std::shared_ptr<cuda_source>, most_sources> sources;
    std::array<std::uint64_t, most_sources> source_ids{};
    std::array<std::uint64_t, most_sources> freed_at{}; ///< in the order of closing; 0: never used
    std::uint64_t closed = 0;
    std::uint64_t next_source = 1;

    static library& get() {
        static library& only = *new library;
        return only;
    }

    cuda_allocator& in_charge() {
        const std::lock_guard lock(mutex);
        if (installed == nullptr) throw std::runtime_error("tenure is not installed: call install first");
        return *installed;
    }
    cuda_allocator* if_in_charge() {
        const std::lock_guard lock(mutex);
        return installed;
    }
    tenant_ptr arena(std::uint64_t id) {
        tenant_ptr t = in_charge().arenas().find(id);
        if (!t) throw std::invalid_argument("there is no arena with id " + std::to_string(id));
        return t;
    }
    std::shared_ptr<cuda_source> source(std::uint64_t id) {
        const std::lock_guard lock(mutex);
        for (std::size_t i = 0; i < most_sources; ++i)
            if (sources[i] && source_ids[i] == id) return sources[i];
        throw std::invalid_argument("there is no pool with id " + std::to_string(id));
    }
    struct numbered_source {
        std::uint64_t id = 0;
        std::shared_ptr<cuda_source> source{};
    };
    numbered_source source_in(std::size_t slot) {
        const std::lock_guard lock(mutex);
        return {source_ids[slot], sources[slot]};
    }

    /// Returns: the slot that has been free for longest: torch may still know the functions of one just given up.
    /// Requires: the mutex is held. Throws: `std::runtime_error` if there is none.
    std::size_t free_slot() const {
        std::size_t best = most_sources;
        for (std::size_t i = 0; i < most_sources; ++i)
            if (!sources[i] && (best == most_sources || freed_at[i] < freed_at[best])) best = i;
        if (best != most_sources) return best;
        throw std::runtime_error("there are " + std::to_string(most_sources) +
                                 " pools already; destroy one first");
    }

    /// Effects: nothing is allocated from the pool any more, and its number is unknown. Throws: `std::runtime_error` if
    /// torch has segments of it.
    void close_source(std::uint64_t id) {
        const auto s = source(id);
        if (!s->close())
            throw std::runtime_error("pool \"" + s->name() + "\" has " + std::to_string(s->live()) +
                                     " live segments: drop the MemPool, and what was allocated in it, first");
        const std::lock_guard lock(mutex);
        for (std::size_t i = 0; i < most_sources; ++i) {
            if (sources[i] != s) continue;
            sources[i].reset();
            freed_at[i] = ++closed;
        }
    }
};

struct source_entry {
    static void* allocate(std::size_t slot, std::size_t n, int device, CUstream_st*) noexcept {
        try {
            const auto s = library::get().source_in(slot).source;
            return s ? s->allocate(n, device) : nullptr;
        } catch (...) { // torch says that the device is full; there is no way to say more
            return nullptr;
        }
    }
    static void deallocate(std::size_t slot, void* p, std::size_t n, int device, CUstream_st*) noexcept {
        try {
            if (const auto s = library::get().source_in(slot).source) s->deallocate(p, n, device);
        } catch (...) { // host memory: the segment stays taken
        }
    }
};

std::string& last_error() {
    thread_local std::string text;
    return text;
}

/// Returns: what `f` returns, or `otherwise` with the text in `last_error`.
template <class F, class R>
R guarded(R otherwise, F&& f) noexcept {
    try {
        last_error().clear();
        return f();
    } catch (const c10::Error& e) {
        last_error() = e.what_without_backtrace();
    } catch (const std::exception& e) {
        last_error() = e.what();
    } catch (...) {
        last_error() = "unknown error";
    }
    return otherwise;
}

template <class F>
int checked(F&& f) noexcept {
    return guarded(1, [&] {
        f();
        return 0;
    });
}

char* copy_of(const std::string& s) {
    auto* const text = static_cast<char*>(std::malloc(s.size() + 1));
    if (text == nullptr) throw std::bad_alloc();
    std::memcpy(text, s.c_str(), s.size() + 1);
    return text;
}

std::string_view text_of(const char* s) noexcept {
    return s == nullptr ? std::string_view() : std::string_view(s);
}

constexpr const char* built_for = TENURE_TORCH_VERSION;

/// "2.11" of "2.11.0+cu130".
std::string_view minor_version(std::string_view version) noexcept {
    const std::size_t first = version.find('.');
    if (first == std::string_view::npos) return version;
    return version.substr(0, std::min(version.find('.', first + 1), version.find_first_of("+ab", first + 1)));
}

void check_version(std::string_view running) {
    if (minor_version(running) == minor_version(built_for)) return;
    const std::string minor(minor_version(running));
    throw std::runtime_error("tenure's library for torch was built against torch " + std::string(built_for) +
                             " and cannot serve torch " + std::string(running) +
                             ": the interface between them changes with each minor version. Install torch " +
                             std::string(minor_version(built_for)) +
                             ", or build tenure against this one: cmake -B build -DTENURE_TORCH=" +
                             "$(python -c 'import torch, os; print(os.path.dirname(torch.__file__))') && "
                             "cmake --build build --target tenure_torch");
}

void install(std::string_view running, std::string_view options) {
    check_version(running);
    const settings s = parse_settings(options, settings::of_install());
    check_policy(s.policy);
    library& l = library::get();
    const std::lock_guard lock(l.mutex);
    if (l.installed != nullptr) {
        if (l.installed->chosen() == s) return;
        throw std::runtime_error("tenure is installed already, with other options");
    }
    native::CUDAAllocator* const former = native::allocator.load();
    if (const std::string ignored =
            ignored_keys(c10::CachingAllocator::getAllocatorSettings(), s.policy.name);
        !ignored.empty())
        TORCH_WARN("tenure ignores these keys of PYTORCH_ALLOC_CONF with policy ", s.policy.name, ": ",
                   ignored);
    auto* const mine = new cuda_allocator(l.world, s, settings_from_torch(s), former);
    if (former != nullptr && former->initialized()) mine->take_over(c10::cuda::device_count());
    native::allocator.store(mine);
    c10::SetAllocator(c10::kCUDA, mine, 1);
    l.installed = mine;
#ifdef TENURE_TORCH_TRACES
    using listener = told_waits<cuda_world>;
    if (s.waits) trace_hook<listener>::listen(*new listener(l.world, *mine)); // for ever, as the hook
#endif
}

void describe_memory(json_text& j, const policies::named_arena& m) {
    const usage_counters u = m.usage();
    const meter_reading l = m.node().read();
    j.key("max").limit(l.max);
    j.key("charged").value(l.charged).key("peak").value(l.peak).key("refused").value(l.refused);
    j.key("requested").value(u.requested.current).key("requested_peak").value(u.requested.peak);
    j.key("allocated").value(u.allocated.current).key("allocated_peak").value(u.allocated.peak);
    j.key("reserved").value(u.reserved.current).key("reserved_peak").value(u.reserved.peak);
    j.key("pending").value(u.pending).key("captured").value(u.captured);
    j.key("blocks").value(u.blocks.current).key("failures").value(u.failures);
}

void describe_unused(json_text& j, std::size_t max) {
    j.key("device").null().key("max").limit(max);
    for (const char* k :
         {"charged", "peak", "refused", "requested", "requested_peak", "allocated", "allocated_peak",
          "reserved", "reserved_peak", "pending", "captured", "blocks", "failures"})
        j.key(k).value(std::size_t{0});
}

void begin_arena(json_text& j, std::uint64_t id, const std::string& name, const char* kind,
                 const std::string& policy, bool alive) {
    j.open('{').key("id").value(id).key("name").value(name).key("kind").value(kind);
    j.key("policy").value(policy).key("alive").flag(alive);
}

std::string arenas_json() {
    library& l = library::get();
    json_text j;
    j.open('[');
    if (cuda_allocator* const a = l.if_in_charge()) {
        for (const tenant_ptr& t : a->arenas().list()) {
            bool anywhere = false;
            a->for_each_heap([&](auto& h) {
                h.for_each_slot([&](const arena_slot& s) {
                    if (s.owner != t) return;
                    anywhere = true;
                    begin_arena(j, t->id(), t->name(), "arena", t->policy().name, t->open());
                    j.key("device").value(static_cast<std::size_t>(h.ordinal()));
                    describe_memory(j, *s.arena);
                    j.close('}');
                });
            });
            if (anywhere) continue;
            if (!t->open()) {
                a->arenas().forget(t->id());
                continue;
            }
            begin_arena(j, t->id(), t->name(), "arena", t->policy().name, true);
            describe_unused(j, t->max(0));
            j.close('}');
        }
    }
    for (std::size_t slot = 0; slot < most_sources; ++slot) {
        const auto [id, s] = l.source_in(slot);
        if (!s) continue;
        const std::uint64_t number = id; // clang 14 cannot capture a structured binding
        bool anywhere = false;
        s->for_each([&](int device, const policies::named_arena& m) {
            anywhere = true;
            begin_arena(j, number, s->name(), "pool", s->policy().name, true);
            j.key("device").value(static_cast<std::size_t>(device));
            describe_memory(j, m);
            j.close('}');
        });
        if (anywhere) continue;
        begin_arena(j, id, s->name(), "pool", s->policy().name, true);
        describe_unused(j, s->max());
        j.close('}');
    }
    j.close(']');
    return j.text();
}

std::string stats_json(int device) {
    cuda_allocator& a = library::get().in_charge();
    auto& h = a.heap_of(device);
    const meter_reading l = h.limits();
    json_text j;
    j.open('{').key("installed").flag(true).key("device").value(static_cast<std::size_t>(device));
    j.key("limit").limit(l.max).key("fraction").number(h.fraction());
    j.key("charged").value(l.charged).key("peak").value(l.peak);
    j.key("device_allocations")
        .value(h.through().taken())
        .key("device_frees")
        .value(h.through().given_back());
    j.key("foreign_frees").value(a.foreign_frees()).key("former_allocator");
    if (a.former_in_use())
        j.value(a.former()->name());
    else
        j.null();
    j.key("capturing").flag(h.capture_active()).key("private_pools").open('[');
    for (const auto& p : h.pools()) {
        j.open('{').key("id").open('[').value(p.id.first).value(p.id.second).close(']');
        j.key("use_count").value(static_cast<std::size_t>(p.use_count));
        j.key("segments").value(p.segments).key("bytes").value(p.bytes);
        j.key("live").value(p.live).key("live_bytes").value(p.live_bytes);
        j.key("use_on_oom").flag(p.use_on_oom).key("no_split").flag(p.no_split);
        j.key("captured").flag(p.captured).close('}');
    }
    j.close(']').close('}');
    return j.text();
}

} // namespace
} // namespace tenure::torch

using namespace tenure::torch;

#define TENURE_EXPORT extern "C" __attribute__((visibility("default")))

TENURE_EXPORT int tenure_torch_abi(void) {
    return TENURE_TORCH_ABI;
}
TENURE_EXPORT const char* tenure_torch_last_error(void) {
    return last_error().c_str();
}
TENURE_EXPORT const char* tenure_torch_built_for(void) {
    return built_for;
}
TENURE_EXPORT const char* tenure_torch_policies(void) {
    return tenure::policies::policy_names;
}
TENURE_EXPORT void tenure_torch_free_text(char* text) {
    std::free(text);
}

TENURE_EXPORT int tenure_torch_check(const char* torch_version) {
    return checked([&] { check_version(text_of(torch_version)); });
}
TENURE_EXPORT int tenure_torch_install(const char* torch_version, const char* options) {
    return checked([&] { install(text_of(torch_version), text_of(options)); });
}
TENURE_EXPORT int tenure_torch_installed(void) {
    return guarded(0, [] { return library::get().if_in_charge() != nullptr ? 1 : 0; });
}
TENURE_EXPORT int tenure_torch_set_limit(int device, uint64_t max_bytes) {
    return checked([&] { library::get().in_charge().set_limit(device, max_bytes); });
}

TENURE_EXPORT int tenure_torch_arena_create(const char* name, uint64_t max_bytes, const char* options,
                                            uint64_t* arena) {
    return checked([&] {
        cuda_allocator& a = library::get().in_charge();
        settings given;
        given.policy = a.chosen().policy;
        given = parse_settings(text_of(options), given);
        if (given.limit != tenure::no_limit || given.share != sharing::where_possible || !given.waits)
            throw std::invalid_argument("limit, share and waits are options of install; an arena has max");
        check_policy(given.policy);
        *arena = a.arenas().create(std::string(text_of(name)), max_bytes, given.policy)->id();
    });
}
TENURE_EXPORT int tenure_torch_arena_find(const char* name, uint64_t* arena) {
    return checked([&] {
        const tenant_ptr t = library::get().in_charge().arenas().find(std::string(text_of(name)));
        if (!t) throw std::invalid_argument("there is no arena \"" + std::string(text_of(name)) + "\"");
        *arena = t->id();
    });
}
TENURE_EXPORT int tenure_torch_arena_destroy(uint64_t arena) {
    return checked([&] {
        library& l = library::get();
        if ((arena & source_bit) != 0) return l.close_source(arena);
        if (arena == 0) throw std::invalid_argument("the default arena cannot be destroyed");
        const tenant_ptr t = l.arena(arena);
        if (!t->open()) throw std::invalid_argument("arena \"" + t->name() + "\" is destroyed already");
        t->close();
        l.in_charge().for_each_heap([&](auto& h) { h.close(*t); });
    });
}
TENURE_EXPORT int tenure_torch_arena_push(uint64_t arena) {
    return checked([&] {
        tenant_ptr t = library::get().arena(arena);
        if (!t->open()) throw std::invalid_argument("arena \"" + t->name() + "\" has been destroyed");
        tenants::push(std::move(t));
    });
}
TENURE_EXPORT int tenure_torch_arena_pop(void) {
    return checked([] {
        if (tenants::current() == nullptr) throw std::runtime_error("this thread is in no arena");
        tenants::pop();
    });
}
TENURE_EXPORT uint64_t tenure_torch_arena_current(void) {
    return guarded(std::uint64_t{0}, [] {
        const tenant* const t = tenants::current();
        return t == nullptr ? std::uint64_t{0} : t->id();
    });
}
TENURE_EXPORT int tenure_torch_arena_set_max(uint64_t arena, int device, uint64_t max_bytes) {
    return checked([&] {
        library& l = library::get();
        if ((arena & source_bit) != 0) return l.source(arena)->set_max(device, max_bytes);
        const tenant_ptr t = l.arena(arena);
        if (device >= max_devices)
            throw std::invalid_argument("there is no device " + std::to_string(device));
        for (int d = 0; d < max_devices; ++d) {
            if (device >= 0 && d != device) continue;
            if (auto* const h = l.in_charge().heap_if_any(d))
                h->set_max(*t, max_bytes);
            else
                t->set_max(d, max_bytes);
        }
    });
}
TENURE_EXPORT int tenure_torch_arena_trim(uint64_t arena, int device, uint64_t keep, uint64_t* given_back) {
    return checked([&] {
        library& l = library::get();
        std::size_t n = 0;
        if ((arena & source_bit) != 0) {
            n = l.source(arena)->trim(device, keep);
        } else {
            const tenant_ptr t = l.arena(arena);
            l.in_charge().for_each_heap([&](auto& h) {
                if (device < 0 || h.ordinal() == device) n += h.trim(*t, keep);
            });
        }
        if (given_back != nullptr) *given_back = n;
    });
}
TENURE_EXPORT char* tenure_torch_arenas(void) {
    return guarded(static_cast<char*>(nullptr), [] { return copy_of(arenas_json()); });
}

TENURE_EXPORT int tenure_torch_pool_create(const char* name, uint64_t max_bytes, const char* options,
                                           uint64_t* arena, void** alloc_fn, void** free_fn) {
    return checked([&] {
        library& l = library::get();
        settings given;
        // Memory of cudaMalloc: other devices and other processes reach it as torch's own allocator expects. Torch caches
        // the pool's segments by itself, so there is nothing for a cleverer policy to do.
        given.policy.name = "caching";
        given = parse_settings(text_of(options), given);
        if (given.limit != tenure::no_limit || !given.waits)
            throw std::invalid_argument("limit and waits are options of install; a pool has max");
        auto s = std::make_shared<cuda_source>(l.world, std::string(text_of(name)), max_bytes, given.policy,
                                               given.share);
        const std::lock_guard lock(l.mutex);
        const std::size_t slot = l.free_slot();
        l.sources[slot] = std::move(s);
        *arena = l.source_ids[slot] = source_bit | l.next_source++;
        const auto [take, give] = functions_of<source_entry>(slot);
        *alloc_fn = reinterpret_cast<void*>(take);
        *free_fn = reinterpret_cast<void*>(give);
    });
}

TENURE_EXPORT char* tenure_torch_stats(int device) {
    return guarded(static_cast<char*>(nullptr), [&] { return copy_of(stats_json(device)); });
}
TENURE_EXPORT int tenure_torch_validate(void) {
    return checked([] {
        if (cuda_allocator* const a = library::get().if_in_charge(); a != nullptr && !a->validate())
            throw std::runtime_error("an invariant does not hold");
    });
}
