/* Prints what a program compiled against tenure.h relies on: sizes and places of structs, and the numbers of codes.
 * Compiled as C11; check_abi.py compares it with what is checked in. */

#include <tenure/tenure.h>

#include <stddef.h>
#include <stdio.h>

#define STRUCT(s) printf("struct " #s " %zu\n", sizeof(s))
#define MEMBER(s, m) printf("  " #s "." #m " %zu\n", offsetof(s, m))
#define CODE(c) printf("code " #c " %d\n", (int)c)

/* A parameter of another type is seen by nobody who links. */
#define FUNCTION(f, result, parameters) \
    _Static_assert(_Generic(&f, result(*) parameters: 1, default: 0), #f " has other types than it had")
FUNCTION(tenure_version, uint32_t, (void));
FUNCTION(tenure_version_text, const char*, (void));
FUNCTION(tenure_policies, const char*, (void));
FUNCTION(tenure_code_name, const char*, (tenure_code));
FUNCTION(tenure_last_error, const char*, (void));
FUNCTION(tenure_get_failure, tenure_code, (tenure_failure*));
FUNCTION(tenure_free_text, void, (char*));
FUNCTION(tenure_device_open, tenure_code, (const char*, const char*, tenure_device**));
FUNCTION(tenure_device_close, tenure_code, (tenure_device*));
FUNCTION(tenure_device_get_info, tenure_code, (tenure_device*, tenure_device_info*));
FUNCTION(tenure_stream_create, tenure_code, (tenure_device*, void**));
FUNCTION(tenure_stream_synchronize, tenure_code, (tenure_device*, void*));
FUNCTION(tenure_stream_destroy, tenure_code, (tenure_device*, void*));
FUNCTION(tenure_arena_create, tenure_code, (tenure_device*, const char*, const char*, tenure_arena**));
FUNCTION(tenure_group_create, tenure_code, (tenure_device*, const char*, const char*, tenure_arena**));
FUNCTION(tenure_arenas_create, tenure_code, (tenure_device*, const char*));
FUNCTION(tenure_arena_find, tenure_code, (tenure_device*, const char*, tenure_arena**));
FUNCTION(tenure_arena_destroy, tenure_code, (tenure_arena*, uint32_t));
FUNCTION(tenure_arena_set, tenure_code, (tenure_arena*, const char*, uint64_t*));
FUNCTION(tenure_allocate, tenure_code, (tenure_arena*, void*, size_t, size_t, void**));
FUNCTION(tenure_free, tenure_code, (tenure_arena*, void*, void*, size_t));
FUNCTION(tenure_allocate_sync, tenure_code, (tenure_arena*, size_t, size_t, void**));
FUNCTION(tenure_free_sync, tenure_code, (tenure_arena*, void*, size_t));
FUNCTION(tenure_release, tenure_code, (tenure_arena*, void*));
FUNCTION(tenure_record_use, tenure_code, (tenure_arena*, void*, void*));
FUNCTION(tenure_owns, int, (const tenure_arena*, const void*));
FUNCTION(tenure_trim, tenure_code, (tenure_arena*, uint64_t, uint64_t*));
FUNCTION(tenure_release_captured, tenure_code, (tenure_arena*, uint64_t));
FUNCTION(tenure_share, tenure_code, (tenure_arena*, void*, void*, size_t, tenure_shared**));
FUNCTION(tenure_shared_anywhere, void, (tenure_shared*));
FUNCTION(tenure_shared_drop, tenure_code, (tenure_shared*));
FUNCTION(tenure_dlpack_export, tenure_code, (tenure_shared*, int32_t, int32_t, int32_t, const int64_t*, int32_t, void**, const char**));
FUNCTION(tenure_dlpack_destructor, tenure_capsule_destructor, (int (*)(void*, const char*), void* (*)(void*, const char*)));
FUNCTION(tenure_get_statistics, tenure_code, (const tenure_arena*, tenure_statistics*));
FUNCTION(tenure_arenas_json, tenure_code, (tenure_device*, char**));
FUNCTION(tenure_snapshot_json, tenure_code, (const tenure_arena*, char**));
FUNCTION(tenure_validate, tenure_code, (const tenure_arena*));

/* Nor is a member of another sign or kind. */
#define TYPE(s, m, type) _Static_assert(_Generic(((s*)0)->m, type: 1, default: 0), #s "." #m " has another type")
#define TEXT(s, m) _Static_assert(_Generic(&((s*)0)->m[0], char*: 1, default: 0), #s "." #m " is no text")
TYPE(tenure_failure, size, size_t);
TYPE(tenure_failure, requested, uint64_t);
TYPE(tenure_failure, rounded, uint64_t);
TYPE(tenure_failure, used, uint64_t);
TYPE(tenure_failure, min, uint64_t);
TYPE(tenure_failure, max, uint64_t);
TYPE(tenure_failure, free_bytes, uint64_t);
TYPE(tenure_failure, largest_free, uint64_t);
TYPE(tenure_failure, pending, uint64_t);
TEXT(tenure_failure, cause);
TEXT(tenure_failure, arena);
TYPE(tenure_device_info, size, size_t);
TYPE(tenure_device_info, total, uint64_t);
TYPE(tenure_device_info, free, uint64_t);
TYPE(tenure_device_info, host, int32_t);
TYPE(tenure_device_info, ordinal, int32_t);
TYPE(tenure_statistics, size, size_t);
TYPE(tenure_statistics, requested, uint64_t);
TYPE(tenure_statistics, requested_peak, uint64_t);
TYPE(tenure_statistics, allocated, uint64_t);
TYPE(tenure_statistics, allocated_peak, uint64_t);
TYPE(tenure_statistics, reserved, uint64_t);
TYPE(tenure_statistics, reserved_peak, uint64_t);
TYPE(tenure_statistics, pending, uint64_t);
TYPE(tenure_statistics, captured, uint64_t);
TYPE(tenure_statistics, blocks, uint64_t);
TYPE(tenure_statistics, segments, uint64_t);
TYPE(tenure_statistics, allocations, uint64_t);
TYPE(tenure_statistics, failures, uint64_t);
TYPE(tenure_statistics, charged, uint64_t);
TYPE(tenure_statistics, charged_peak, uint64_t);
TYPE(tenure_statistics, used, uint64_t);
TYPE(tenure_statistics, min, uint64_t);
TYPE(tenure_statistics, high, uint64_t);
TYPE(tenure_statistics, max, uint64_t);
TYPE(tenure_statistics, weight, uint64_t);
TYPE(tenure_statistics, refused, uint64_t);
TYPE(tenure_statistics, reclaimed, uint64_t);
TYPE(tenure_statistics, borrowed, uint64_t);
TYPE(tenure_statistics, scrubbed, uint64_t);

int main(void) {
    STRUCT(tenure_failure);
    MEMBER(tenure_failure, size);
    MEMBER(tenure_failure, requested);
    MEMBER(tenure_failure, rounded);
    MEMBER(tenure_failure, used);
    MEMBER(tenure_failure, min);
    MEMBER(tenure_failure, max);
    MEMBER(tenure_failure, free_bytes);
    MEMBER(tenure_failure, largest_free);
    MEMBER(tenure_failure, pending);
    MEMBER(tenure_failure, cause);
    MEMBER(tenure_failure, arena);

    STRUCT(tenure_device_info);
    MEMBER(tenure_device_info, size);
    MEMBER(tenure_device_info, total);
    MEMBER(tenure_device_info, free);
    MEMBER(tenure_device_info, host);
    MEMBER(tenure_device_info, ordinal);

    STRUCT(tenure_statistics);
    MEMBER(tenure_statistics, size);
    MEMBER(tenure_statistics, requested);
    MEMBER(tenure_statistics, requested_peak);
    MEMBER(tenure_statistics, allocated);
    MEMBER(tenure_statistics, allocated_peak);
    MEMBER(tenure_statistics, reserved);
    MEMBER(tenure_statistics, reserved_peak);
    MEMBER(tenure_statistics, pending);
    MEMBER(tenure_statistics, captured);
    MEMBER(tenure_statistics, blocks);
    MEMBER(tenure_statistics, segments);
    MEMBER(tenure_statistics, allocations);
    MEMBER(tenure_statistics, failures);
    MEMBER(tenure_statistics, charged);
    MEMBER(tenure_statistics, charged_peak);
    MEMBER(tenure_statistics, used);
    MEMBER(tenure_statistics, min);
    MEMBER(tenure_statistics, high);
    MEMBER(tenure_statistics, max);
    MEMBER(tenure_statistics, weight);
    MEMBER(tenure_statistics, refused);
    MEMBER(tenure_statistics, reclaimed);
    MEMBER(tenure_statistics, borrowed);
    MEMBER(tenure_statistics, scrubbed);

    CODE(TENURE_OK);
    CODE(TENURE_OUT_OF_MEMORY);
    CODE(TENURE_OVER_LIMIT);
    CODE(TENURE_CAPTURE);
    CODE(TENURE_DRIVER);
    CODE(TENURE_NO_DEVICE);
    CODE(TENURE_NOT_SUPPORTED);
    CODE(TENURE_INVALID_ARGUMENT);
    CODE(TENURE_INVALID_HANDLE);
    CODE(TENURE_INVALID_CONFIGURATION);
    CODE(TENURE_NOT_ADMITTED);
    CODE(TENURE_NOT_FOUND);
    CODE(TENURE_EXISTS);
    CODE(TENURE_BUSY);
    CODE(TENURE_HOST_MEMORY);
    CODE(TENURE_INTERNAL);
    CODE(TENURE_FOREIGN_POINTER);
    CODE(TENURE_WRONG_ARENA);
    CODE(TENURE_DOUBLE_FREE);
    CODE(TENURE_INTERIOR_POINTER);
    CODE(TENURE_SIZE_MISMATCH);
    CODE(TENURE_LIVE_BLOCKS);
    CODE(TENURE_KEEP_LIVE);
    CODE(TENURE_RELEASE_LIVE);
    return 0;
}
