/* Prints what a program compiled against tenure.h relies on: sizes and places of structs, and the numbers of codes.
 * Compiled as C11; check_abi.py compares it with what is checked in. */

#include <tenure/tenure.h>

#include <stddef.h>
#include <stdio.h>

#define STRUCT(s) printf("struct " #s " %zu\n", sizeof(s))
#define MEMBER(s, m) printf("  " #s "." #m " %zu\n", offsetof(s, m))
#define CODE(c) printf("code " #c " %d\n", (int)c)

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
