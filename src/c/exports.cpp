// What tenure.h declares: a thin layer that looks at handles and turns exceptions into codes.

#include "failure.hpp"
#include "settings.hpp"
#include "shared_block.hpp"
#include "snapshot_text.hpp"
#include "tenants.hpp"

#include "../policies/policy_choice.hpp"

#include <tenure/core/version.hpp>
#include <tenure/resource/resource.hpp>
#include <tenure/tenancy/arenas_text.hpp>
#include <tenure/tenancy/environment.hpp>
#include <tenure/tenure.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

static_assert(TENURE_NO_LIMIT == tenure::no_limit);

namespace tenure::c {
namespace {

tenure_code not_a(const char* what) noexcept {
    if (!call_slots::of_this_thread()) return fail(TENURE_HOST_MEMORY, "the host has no memory left");
    char text[96];
    std::snprintf(text, sizeof text, "this is no %s, or one that was destroyed", what);
    return fail(TENURE_INVALID_HANDLE, text);
}

/// Returns: what `f` returns for the device or arena behind a handle.
template <class F>
tenure_code with_device(tenure_device* d, F&& f) noexcept {
    const inside here(d, handle::device);
    if (!here) return not_a("device");
    return guarded([&] { return f(*d->inside); });
}
template <class Arena, class F>
tenure_code with_arena(Arena* a, F&& f) noexcept {
    const inside here(a, handle::arena);
    if (!here) return not_a("arena");
    return guarded([&] { return f(*a); });
}

/// A call inside of an arena that has memory, or the code for why it is none.
class memory_call {
  public:
    explicit memory_call(const tenure_arena* a) noexcept : here_(a, handle::arena) {
        if (!here_)
            refusal_ = not_a("arena");
        else if (!a->memory)
            refusal_ = fail(TENURE_INVALID_ARGUMENT, "this is a group: it has no memory of its own");
    }

    explicit operator bool() const noexcept { return refusal_ == TENURE_OK; }
    [[nodiscard]] tenure_code refusal() const noexcept { return refusal_; }

  private:
    inside here_;
    tenure_code refusal_ = TENURE_OK;
};

tenure_code is_null(const char* argument) noexcept {
    char text[64];
    std::snprintf(text, sizeof text, "the argument %s is null", argument);
    return fail(TENURE_INVALID_ARGUMENT, text);
}

char* copy_of(const std::string& s) {
    auto* const text = static_cast<char*>(std::malloc(s.size() + 1));
    if (text == nullptr) throw std::bad_alloc();
    std::memcpy(text, s.c_str(), s.size() + 1);
    return text;
}

/// Effects: as much of `from` as the caller's struct has room for; the first member of both is their size.
template <class Struct>
tenure_code hand_out(Struct& from, Struct* to) noexcept {
    constexpr std::size_t smallest = 2 * sizeof(std::uint64_t);
    if (to->size < smallest) return fail(TENURE_INVALID_ARGUMENT, "the struct's member `size` was not set");
    from.size = std::min(to->size, sizeof(Struct));
    std::memcpy(to, &from, from.size);
    return TENURE_OK;
}

template <std::size_t N>
void copy_text(char (&to)[N], std::string_view from) noexcept {
    const std::size_t n = std::min(from.size(), N - 1);
    std::memcpy(to, from.data(), n);
    to[n] = '\0';
}

/// "cuda", "cuda:1" or "sim". Returns: the ordinal, or nothing for "sim". Throws: `coded_error`.
std::optional<int> ordinal_of(std::string_view name) {
    if (name == "sim") return std::nullopt;
    if (name == "cuda") return 0;
    int ordinal = -1;
    if (name.substr(0, 5) == "cuda:") {
        const char* const end = name.data() + name.size();
        const auto [rest, error] = std::from_chars(name.data() + 5, end, ordinal);
        if (error == std::errc{} && rest == end && ordinal >= 0) return ordinal;
    }
    throw coded_error(TENURE_INVALID_ARGUMENT,
                      "there is no device \"" + std::string(name) + "\": write cuda:0, cuda:1, ... or sim");
}

std::uint64_t now_ns() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

tenure_code answer(allocate_result r, void** pointer) noexcept {
    if (!r) return fail(r.error());
    *pointer = *r;
    return TENURE_OK;
}

/// Returns: what TENURE_ARENAS says. Throws: `arena_config_error`, `coded_error` if it names a file that cannot be read.
arena_config operators_lines() {
    try {
        return arena_config::from_environment();
    } catch (const arena_config_error&) {
        throw;
    } catch (const std::runtime_error& e) {
        throw coded_error(TENURE_INVALID_CONFIGURATION, std::string("TENURE_ARENAS: ") + e.what());
    }
}

/// Throws: `coded_error` if `wanted` names what the operator's line names.
void refuse_operators(const arena_entry& line, const arena_entry& wanted) {
    const auto refuse = [&](bool both, const char* key) {
        if (both)
            throw coded_error(TENURE_NOT_ADMITTED, "TENURE_ARENAS says what " + std::string(key) + " of \"" +
                                                       wanted.path + "\" is");
    };
    refuse(line.given.max && wanted.given.max, "max");
    refuse(line.given.min && wanted.given.min, "min");
    refuse(line.given.high && wanted.given.high, "high");
    refuse(line.given.weight && wanted.given.weight, "weight");
}

tenure_code create(tenure_device* device, const char* path, const char* settings, tenure_arena** made,
                   tenant_kind kind) noexcept {
    if (made == nullptr) return is_null(kind == tenant_kind::group ? "group" : "arena");
    if (path == nullptr) return is_null("path");
    return with_device(device, [&](tenants& all) -> tenure_code {
        *made = &all.create(path, text_of(settings), kind);
        return TENURE_OK;
    });
}

} // namespace
} // namespace tenure::c

using namespace tenure; // NOLINT(google-build-using-namespace): what follows is C to its callers
using namespace tenure::c;

extern "C" {

uint32_t tenure_version(void) {
    return TENURE_VERSION_MAJOR * 65536 + TENURE_VERSION_MINOR * 256 + TENURE_VERSION_PATCH;
}
const char* tenure_version_text(void) {
    return TENURE_VERSION_STRING;
}
const char* tenure_policies(void) {
    return policies::policy_names;
}

const char* tenure_code_name(tenure_code code) {
    switch (code) {
    case TENURE_OK: return "ok";
    case TENURE_OUT_OF_MEMORY: return "out_of_memory";
    case TENURE_OVER_LIMIT: return "over_limit";
    case TENURE_CAPTURE: return "capture";
    case TENURE_DRIVER: return "driver";
    case TENURE_NO_DEVICE: return "no_device";
    case TENURE_NOT_SUPPORTED: return "not_supported";
    case TENURE_INVALID_ARGUMENT: return "invalid_argument";
    case TENURE_INVALID_HANDLE: return "invalid_handle";
    case TENURE_INVALID_CONFIGURATION: return "invalid_configuration";
    case TENURE_NOT_ADMITTED: return "not_admitted";
    case TENURE_NOT_FOUND: return "not_found";
    case TENURE_EXISTS: return "exists";
    case TENURE_BUSY: return "busy";
    case TENURE_HOST_MEMORY: return "host_memory";
    case TENURE_INTERNAL: return "internal";
    case TENURE_FOREIGN_POINTER: return "foreign_pointer";
    case TENURE_WRONG_ARENA: return "wrong_arena";
    case TENURE_DOUBLE_FREE: return "double_free";
    case TENURE_INTERIOR_POINTER: return "interior_pointer";
    case TENURE_SIZE_MISMATCH: return "size_mismatch";
    case TENURE_LIVE_BLOCKS: return "live_blocks";
    default: return "unknown";
    }
}

const char* tenure_last_error(void) {
    return last_failure::of_this_thread().text.data();
}

tenure_code tenure_get_failure(tenure_failure* failure) {
    if (failure == nullptr) return is_null("failure");
    const auto& last = last_failure::of_this_thread().allocation;
    if (!last) return fail(TENURE_NOT_FOUND, "no allocation of this thread has failed");
    tenure_failure f{};
    f.requested = last->requested;
    f.rounded = last->rounded;
    f.used = last->used;
    f.min = last->min;
    f.max = last->max;
    f.free_bytes = last->free_bytes;
    f.largest_free = last->largest_free;
    f.pending = last->pending;
    copy_text(f.cause, to_string(last->cause));
    copy_text(f.arena, last->arena.view());
    return hand_out(f, failure);
}

void tenure_free_text(char* text) {
    std::free(text);
}

// ---- devices ----

tenure_code tenure_device_open(const char* name, const char* options, tenure_device** device) {
    if (name == nullptr) return is_null("name");
    if (device == nullptr) return is_null("device");
    return guarded([&]() -> tenure_code {
        const std::optional<int> ordinal = ordinal_of(name);
        const device_settings settings = parse_device_settings(text_of(options), !ordinal);
        arena_config from_operator = operators_lines();
        (void)environment::
            instance(); // what is wrong in the environment is said here, and not at the first arena
        auto opened = std::make_unique<tenants>(ordinal ? open_cuda(*ordinal, settings) : open_sim(settings),
                                                std::move(from_operator));
        *device = &library::get().keep(std::move(opened));
        return TENURE_OK;
    });
}

tenure_code tenure_device_close(tenure_device* device) {
    if (device == nullptr) return not_a("device");
    return guarded([&]() -> tenure_code {
        const auto can_go = [&] {
            if (const std::size_t n = device->inside->size(); n != 0)
                throw coded_error(TENURE_BUSY,
                                  "the device still has " + std::to_string(n) + " arenas and groups");
            return true;
        };
        if (!close_handle(*device, handle::device, can_go)) return not_a("device");
        device->inside.reset();
        return TENURE_OK;
    });
}

tenure_code tenure_device_get_info(tenure_device* device, tenure_device_info* info) {
    if (info == nullptr) return is_null("info");
    return with_device(device, [&](tenants& all) -> tenure_code {
        const result<device_memory, status> memory = all.device().memory();
        if (!memory) return fail(memory.error(), "asking the device for its memory");
        tenure_device_info i{};
        i.total = memory->total;
        i.free = memory->free;
        i.host = all.device().host() ? 1 : 0;
        i.ordinal = all.device().ordinal();
        return hand_out(i, info);
    });
}

tenure_code tenure_stream_create(tenure_device* device, void** stream) {
    if (stream == nullptr) return is_null("stream");
    return with_device(device, [&](tenants& all) -> tenure_code {
        const result<stream_handle, status> made = all.device().create_stream();
        if (!made) return fail(made.error(), "creating a stream");
        *stream = *made;
        return TENURE_OK;
    });
}

tenure_code tenure_stream_synchronize(tenure_device* device, void* stream) {
    return with_device(device, [&](tenants& all) -> tenure_code {
        const status s = all.device().synchronize(to_stream(stream));
        return s == status::ok ? TENURE_OK : fail(s, "synchronizing a stream");
    });
}

tenure_code tenure_stream_destroy(tenure_device* device, void* stream) {
    return with_device(device, [&](tenants& all) -> tenure_code {
        const status s = all.device().destroy_stream(to_stream(stream));
        return s == status::ok ? TENURE_OK : fail(s, "destroying a stream");
    });
}

// ---- arenas and groups ----

tenure_code tenure_arena_create(tenure_device* device, const char* path, const char* settings,
                                tenure_arena** arena) {
    return create(device, path, settings, arena, tenant_kind::arena);
}

tenure_code tenure_group_create(tenure_device* device, const char* path, const char* settings,
                                tenure_arena** group) {
    return create(device, path, settings, group, tenant_kind::group);
}

tenure_code tenure_arenas_create(tenure_device* device, const char* text) {
    if (text == nullptr) return is_null("text");
    return with_device(device, [&](tenants& all) -> tenure_code {
        all.create_all(text);
        return TENURE_OK;
    });
}

tenure_code tenure_arena_find(tenure_device* device, const char* path, tenure_arena** arena) {
    if (path == nullptr) return is_null("path");
    if (arena == nullptr) return is_null("arena");
    return with_device(device, [&](tenants& all) -> tenure_code {
        tenure_arena* const found = all.find(path);
        if (found == nullptr)
            throw coded_error(TENURE_NOT_FOUND, "there is no tenant \"" + std::string(path) + "\"");
        *arena = found;
        return TENURE_OK;
    });
}

tenure_code tenure_arena_destroy(tenure_arena* arena, uint32_t flags) {
    if ((flags & ~std::uint32_t{TENURE_RELEASE_LIVE}) != 0)
        return fail(TENURE_INVALID_ARGUMENT, "unknown flags");
    // Not inside of the arena, for whose calls it waits, but of its device.
    if (arena == nullptr) return not_a("arena");
    const std::uint32_t mark = arena->mark.load(); // another kind of handle has no owner to read
    if (mark != handle::arena && mark != handle::closing) return not_a("arena");
    const inside here(arena->owner, handle::device);
    if (!here) return not_a("arena");
    return guarded([&]() -> tenure_code {
        const bool was_there = arena->owner->inside->destroy(*arena, (flags & TENURE_RELEASE_LIVE) != 0);
        return was_there ? TENURE_OK : not_a("arena");
    });
}

tenure_code tenure_arena_set(tenure_arena* arena, const char* settings, uint64_t* over) {
    return with_arena(arena, [&](tenure_arena& a) -> tenure_code {
        const arena_entry wanted = parse_tenant(a.path, text_of(settings));
        if (!wanted.policy.empty()) throw std::invalid_argument("the policy of an arena cannot be changed");
        if (const arena_entry* const line = a.owner->inside->from_operator(a.path))
            refuse_operators(*line, wanted);

        const meter_reading now = a.node->read();
        const std::size_t min = wanted.given.min ? wanted.limits.min : now.min;
        const std::size_t max = wanted.given.max ? wanted.limits.max : now.max;
        if (min > max)
            throw std::invalid_argument("\"" + a.path + "\": min would be above max (" + format_bytes(min) +
                                        " and " + format_bytes(max) + ")");
        std::size_t above = 0;
        if (max > now.max) (void)a.node->enforce_max(max); // room for the guarantee first
        if (wanted.given.min && a.node->admit_min(min) != status::ok) {
            if (max > now.max) (void)a.node->enforce_max(now.max);
            throw coded_error(TENURE_NOT_ADMITTED, "min=" + format_bytes(min) + " of \"" + a.path +
                                                       "\" does not fit into what stands above it");
        }
        if (wanted.given.high) a.node->set_high(wanted.limits.high);
        if (wanted.given.weight) a.node->set_weight(wanted.limits.weight);
        if (wanted.given.max) above = a.node->enforce_max(max);
        if (over != nullptr) *over = above;
        return TENURE_OK;
    });
}

// ---- memory ----

tenure_code tenure_allocate(tenure_arena* arena, void* stream, size_t bytes, size_t alignment,
                            void** pointer) {
    if (pointer == nullptr) return is_null("pointer");
    const memory_call here(arena);
    if (!here) return here.refusal();
    return answer(
        arena->memory->try_allocate(to_stream(stream), bytes, alignment == 0 ? default_alignment : alignment),
        pointer);
}

tenure_code tenure_free(tenure_arena* arena, void* stream, void* pointer, size_t bytes) {
    const memory_call here(arena);
    if (!here) return here.refusal();
    const deallocate_result r = arena->memory->try_deallocate(to_stream(stream), pointer, bytes);
    return r ? TENURE_OK : fail(r.error());
}

tenure_code tenure_allocate_sync(tenure_arena* arena, size_t bytes, size_t alignment, void** pointer) {
    if (pointer == nullptr) return is_null("pointer");
    const memory_call here(arena);
    if (!here) return here.refusal();
    return guarded([&]() -> tenure_code {
        *pointer = arena->memory->allocate_sync(bytes, alignment == 0 ? default_alignment : alignment);
        return TENURE_OK;
    });
}

tenure_code tenure_free_sync(tenure_arena* arena, void* pointer, size_t bytes) {
    const memory_call here(arena);
    if (!here) return here.refusal();
    const misuse_catcher caught;
    arena->memory->deallocate_sync(pointer, bytes);
    return caught.code();
}

tenure_code tenure_release(tenure_arena* arena, void* pointer) {
    const memory_call here(arena);
    if (!here) return here.refusal();
    const misuse_catcher caught;
    arena->memory->release(pointer);
    return caught.code();
}

tenure_code tenure_record_use(tenure_arena* arena, void* pointer, void* stream) {
    const memory_call here(arena);
    if (!here) return here.refusal();
    const misuse_catcher caught;
    arena->memory->record_use(pointer, to_stream(stream));
    return caught.code();
}

int tenure_owns(const tenure_arena* arena, const void* pointer) {
    const inside here(arena, handle::arena);
    return here && arena->memory && arena->memory->owns(const_cast<void*>(pointer)) ? 1 : 0;
}

tenure_code tenure_trim(tenure_arena* arena, uint64_t keep, uint64_t* given_back) {
    return with_arena(arena, [&](tenure_arena& a) -> tenure_code {
        const std::size_t given = a.memory ? a.memory->trim(keep) : a.group->trim(keep);
        if (given_back != nullptr) *given_back = given;
        return TENURE_OK;
    });
}

tenure_code tenure_release_captured(tenure_arena* arena, uint64_t capture) {
    const memory_call here(arena);
    if (!here) return here.refusal();
    return arena->arena->release_captured(capture)
               ? TENURE_OK
               : fail(TENURE_NOT_SUPPORTED, "this arena's policy keeps nothing for graphs");
}

// ---- blocks that several hold ----

tenure_code tenure_share(tenure_arena* arena, void* stream, void* pointer, size_t bytes,
                         tenure_shared** block) {
    if (block == nullptr) return is_null("block");
    shared_blocks::retry();
    const memory_call here(arena);
    if (!here) return here.refusal();
    if (pointer != nullptr && !arena->memory->owns(pointer))
        return fail(TENURE_FOREIGN_POINTER, "no live block of this arena starts there");
    return guarded([&]() -> tenure_code {
        auto made = std::make_unique<tenure_shared>();
        const opened_device& device = arena->owner->inside->device();
        made->arena = arena;
        made->stream = stream;
        made->pointer = pointer;
        made->bytes = bytes;
        made->device_type = device.host() ? dlpack::cpu : dlpack::cuda;
        made->ordinal = device.ordinal();
        *block = made.release();
        return TENURE_OK;
    });
}

void tenure_shared_anywhere(tenure_shared* block) {
    if (block != nullptr) block->anywhere.store(true, std::memory_order_relaxed);
}

tenure_code tenure_shared_drop(tenure_shared* block) {
    return block == nullptr ? TENURE_OK : shared_blocks::let_go(*block);
}

tenure_code tenure_dlpack_export(tenure_shared* block, int32_t type, int32_t bits, int32_t dimensions,
                                 const int64_t* shape, int32_t version, void** managed, const char** name) {
    if (block == nullptr) return is_null("block");
    if (managed == nullptr) return is_null("managed");
    if (name == nullptr) return is_null("name");
    if (shape == nullptr && dimensions != 0) return is_null("shape");
    if (type < 0 || type > 255 || bits <= 0 || bits > 255 || bits % 8 != 0 || dimensions < 0)
        return fail(TENURE_INVALID_ARGUMENT, "there is no such type, or no such number of dimensions");
    if (!dlpack::fits(block->bytes, static_cast<std::size_t>(bits) / 8, dimensions, shape))
        return fail(TENURE_INVALID_ARGUMENT, "an array of that shape is larger than the block");
    return guarded([&]() -> tenure_code {
        dlpack::tensor described;
        described.data = block->pointer;
        described.device_type = block->device_type;
        described.device_id = block->ordinal;
        described.dimensions = dimensions;
        described.type_code = static_cast<std::uint8_t>(type);
        described.type_bits = static_cast<std::uint8_t>(bits);
        if (version == 0) {
            *managed = dlpack::made_for<dlpack::managed>(*block, described, shape);
            *name = dlpack::managed::name;
        } else {
            *managed = dlpack::made_for<dlpack::versioned>(*block, described, shape);
            *name = dlpack::versioned::name;
        }
        return TENURE_OK;
    });
}

tenure_capsule_destructor tenure_dlpack_destructor(int (*is_valid)(void*, const char*),
                                                   void* (*pointer)(void*, const char*)) {
    if (is_valid == nullptr || pointer == nullptr) return nullptr;
    dlpack::python_is_valid.store(is_valid);
    dlpack::python_pointer.store(pointer);
    return &dlpack::drop_capsule;
}

// ---- what there is to see ----

tenure_code tenure_get_statistics(const tenure_arena* arena, tenure_statistics* statistics) {
    if (statistics == nullptr) return is_null("statistics");
    return with_arena(arena, [&](const tenure_arena& a) -> tenure_code {
        tenure_statistics s{};
        if (a.memory) {
            const usage_counters u = a.memory->usage();
            s.requested = u.requested.current;
            s.requested_peak = u.requested.peak;
            s.allocated = u.allocated.current;
            s.allocated_peak = u.allocated.peak;
            s.reserved = u.reserved.current;
            s.reserved_peak = u.reserved.peak;
            s.pending = u.pending;
            s.captured = u.captured;
            s.blocks = u.blocks.current;
            s.segments = u.segments.current;
            s.allocations = u.blocks.total_in;
            s.failures = u.failures;
        }
        const meter_reading m = a.node->read();
        s.charged = m.charged;
        s.charged_peak = m.peak;
        s.used = m.used;
        s.min = m.min;
        s.high = m.high;
        s.max = m.max;
        s.weight = m.weight;
        s.refused = m.refused;
        s.reclaimed = m.reclaimed;
        s.borrowed = m.borrowed;
        s.scrubbed = m.scrubbed;
        return hand_out(s, statistics);
    });
}

tenure_code tenure_arenas_json(tenure_device* device, char** text) {
    if (text == nullptr) return is_null("text");
    return with_device(device, [&](tenants& all) -> tenure_code {
        const std::vector<arena_row> rows = all.rows();
        *text = copy_of(to_json(rows, this_process(), now_ns()));
        return TENURE_OK;
    });
}

tenure_code tenure_snapshot_json(const tenure_arena* arena, char** text) {
    if (text == nullptr) return is_null("text");
    const memory_call here(arena);
    if (!here) return here.refusal();
    return guarded([&]() -> tenure_code {
        *text = copy_of(snapshot_text(arena->path, arena->memory->snapshot()));
        return TENURE_OK;
    });
}

tenure_code tenure_validate(const tenure_arena* arena) {
    const memory_call here(arena);
    if (!here) return here.refusal();
    return arena->memory->validate() ? TENURE_OK
                                     : fail(TENURE_INTERNAL, "an invariant of the arena does not hold");
}

} // extern "C"
