#ifndef TENURE_TENURE_H
#define TENURE_TENURE_H

/** \file
 * tenure's C interface: libtenure.so.
 *
 *     tenure_device* gpu;
 *     tenure_arena* job;
 *     void* p;
 *     if (tenure_device_open("cuda:0", NULL, &gpu) != TENURE_OK ||
 *         tenure_arena_create(gpu, "job", "max=8GiB policy=remap", &job) != TENURE_OK ||
 *         tenure_allocate(job, stream, 1 << 20, 0, &p) != TENURE_OK) {
 *         fprintf(stderr, "%s\n", tenure_last_error());
 *     }
 *     ...
 *     tenure_free(job, stream, p, 1 << 20);
 *
 * Results. A function that can fail returns a tenure_code: TENURE_OK, or why not; the sentence for a person is then in
 * tenure_last_error(), of this thread. A failing call changes nothing. No function throws, aborts or exits, whatever is
 * done wrong; what is misused (freed twice, freed in the wrong arena) is not freed, and the code says what it was.
 *
 * Handles are what the create and open functions made. A handle of something that was closed or destroyed is recognised
 * (TENURE_INVALID_HANDLE), and so is a null one; any other pointer is not.
 *
 * Threads. Every function may be called from any thread at any time. Destroying an arena or closing a device waits for the
 * calls that are using it; those that come later find a handle that is none (TENURE_INVALID_HANDLE). A child of fork has no
 * handles of its parent's, and opens devices of its own, which a GPU's driver refuses; "sim" memory it shares with its parent.
 *
 * Streams are cudaStream_t, as void*; null is the legacy default stream, and cudaStreamPerThread the calling thread's own.
 *
 * Sizes are bytes. TENURE_NO_LIMIT stands for "no limit". Texts are UTF-8.
 *
 * Structs that are filled in begin with `size`, which the caller sets to sizeof of the struct he was compiled with; the
 * library fills in as much as that, and sets `size` to what it has filled in. Structs only grow, at their end.
 *
 * The environment, read by tenure_device_open:
 *     TENURE_ARENAS     limits and policies of an operator, a file or the text itself (tenancy/arena_config.hpp). What it
 *                       says of a path holds over what the program says
 *     TENURE_PUBLISH    1: all arenas of this library are shown to `tenure top`
 */

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) && defined(__ELF__)
#define TENURE_API __attribute__((visibility("default")))
#else
#define TENURE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define TENURE_NO_LIMIT UINT64_MAX

typedef struct tenure_device tenure_device;
typedef struct tenure_arena tenure_arena;
typedef struct tenure_shared tenure_shared;

/** What a call answers. The numbers never change; new ones may come. */
typedef int32_t tenure_code;
enum {
    TENURE_OK = 0,
    TENURE_OUT_OF_MEMORY = 1,         /**< the device, or this arena's own memory, has no place for it */
    TENURE_OVER_LIMIT = 2,            /**< a limit refused: see tenure_get_failure for whose */
    TENURE_CAPTURE = 3,               /**< an active graph capture forbids it */
    TENURE_DRIVER = 4,                /**< the driver failed for another reason than the device's memory, or a pool had
                                           no host memory for its own tables */
    TENURE_NO_DEVICE = 5,             /**< no driver, no such device, or not usable in this process */
    TENURE_NOT_SUPPORTED = 6,         /**< this device, policy or build cannot do it */
    TENURE_INVALID_ARGUMENT = 7,      /**< null where something is needed, a size or alignment that cannot be */
    TENURE_INVALID_HANDLE = 8,        /**< null, or of what was destroyed */
    TENURE_INVALID_CONFIGURATION = 9, /**< a text that cannot be read; the error says where */
    TENURE_NOT_ADMITTED = 10,         /**< a guarantee that does not fit, or a tree that is too deep */
    TENURE_NOT_FOUND = 11,            /**< there is nothing by that name */
    TENURE_EXISTS = 12,               /**< there is something by that name already */
    TENURE_BUSY = 13,                 /**< something still stands under it */
    TENURE_HOST_MEMORY = 14,          /**< the host has no memory left */
    TENURE_INTERNAL = 15,             /**< a bug of this library */

    /* Misuse: nothing was freed. */
    TENURE_FOREIGN_POINTER = 32,  /**< no memory of this library */
    TENURE_WRONG_ARENA = 33,      /**< memory of another arena */
    TENURE_DOUBLE_FREE = 34,      /**< free already */
    TENURE_INTERIOR_POINTER = 35, /**< inside a block, not its start */
    TENURE_SIZE_MISMATCH = 36,    /**< another size than it was allocated with */
    TENURE_LIVE_BLOCKS = 37       /**< destroyed with blocks that are not free */
};

/* ---- the library ------------------------------------------------------------------------------------------------- */

/** Major * 65536 + minor * 256 + patch, of the library that is loaded. */
TENURE_API uint32_t tenure_version(void);
/** "0.1.0". */
TENURE_API const char* tenure_version_text(void);
/** The names of the policies, with a space between them. */
TENURE_API const char* tenure_policies(void);
/** "over_limit" for TENURE_OVER_LIMIT; "unknown" for what is no code. Never null. */
TENURE_API const char* tenure_code_name(tenure_code code);

/** Why this thread's last failing call failed, in one line. Never null; valid until this thread's next failing call. */
TENURE_API const char* tenure_last_error(void);

/** All that is known about an allocation that failed. */
typedef struct tenure_failure {
    size_t size;
    uint64_t requested;    /**< as asked */
    uint64_t rounded;      /**< as the policy would have had to take it */
    uint64_t used;         /**< charged to the arena that refused, or used of the device */
    uint64_t min;          /**< that arena's guarantee */
    uint64_t max;          /**< its limit, or the device's capacity */
    uint64_t free_bytes;   /**< held by the arena and free */
    uint64_t largest_free; /**< the largest free block that this request could have used */
    uint64_t pending;      /**< freed, but waiting for work on a stream */
    char cause[24];        /**< "arena_limit", "ancestor_limit", "device", "fragmentation", "stream_pending", ... */
    char arena[96];        /**< path of the arena whose limit refused; empty: no limit did */
} tenure_failure;

/** This thread's last failed allocation; a path that is too long is cut. TENURE_NOT_FOUND: none has failed, or the last
 * call that was refused memory was no allocation (tenure_device_open). */
TENURE_API tenure_code tenure_get_failure(tenure_failure* failure);

/** Gives back a text that the library has made. Null: nothing. */
TENURE_API void tenure_free_text(char* text);

/* ---- devices ----------------------------------------------------------------------------------------------------- */

/** Opens a device. Devices that are opened twice are two, which know nothing of each other's arenas.
 *
 * name      "cuda:0", "cuda" (the first), or "sim": the host's memory with the manners of a GPU, for trying and testing
 * options   "key=value key=value", or null:
 *               scrub=on_transfer     when memory that one arena gave back is wiped before another gets it: on_transfer,
 *                                     on_free, none (tenants that trust each other)
 *               shelf=none            bytes that may lie between arenas instead of with the driver; none: no limit
 *               capacity=1GiB         "sim" only
 *
 * The first open of a GPU makes its primary context, if nobody has yet. */
TENURE_API tenure_code tenure_device_open(const char* name, const char* options, tenure_device** device);

/** TENURE_BUSY: it still has arenas, and nothing has happened. */
TENURE_API tenure_code tenure_device_close(tenure_device* device);

typedef struct tenure_device_info {
    size_t size;
    uint64_t total;  /**< bytes of the device */
    uint64_t free;   /**< bytes that nobody holds, of any process */
    int32_t host;    /**< 1: its memory is the host's ("sim"); 0: a GPU's */
    int32_t ordinal; /**< as the process counts its devices; 0 for "sim" */
} tenure_device_info;

TENURE_API tenure_code tenure_device_get_info(tenure_device* device, tenure_device_info* info);

/** A stream that does not wait for the default stream, for programs that have no CUDA runtime at hand. */
TENURE_API tenure_code tenure_stream_create(tenure_device* device, void** stream);
TENURE_API tenure_code tenure_stream_synchronize(tenure_device* device, void* stream);
TENURE_API tenure_code tenure_stream_destroy(tenure_device* device, void* stream);

/* ---- arenas and groups ------------------------------------------------------------------------------------------- */

/** Makes an arena: a tenant with a pool of its own and limits in bytes.
 *
 * path       names from the root with '/' between them. What is above it must be there, or have a line in TENURE_ARENAS,
 *            and is then made as a group
 * settings   "key=value key=value", or null:
 *                max=8GiB      hard limit of what it holds from the device (default: none)
 *                high=7GiB     above it, its caches are trimmed (default: none)
 *                min=2GiB      kept free for it in every level above (default: 0)
 *                weight=100    share above `min` when idle memory is taken from several
 *                policy=remap  how its pool works: a name of tenure_policies(), and if wanted options of it as
 *                              `tenure compare` names them: policy=caching:max_split=512MiB,gc_threshold=0.8
 *
 * A path without a line of its own in TENURE_ARENAS takes the line "*" beside it, if there is one. */
TENURE_API tenure_code tenure_arena_create(tenure_device* device, const char* path, const char* settings,
                                           tenure_arena** arena);

/** Makes a group: a tenant without a pool, for the levels above the arenas. It cannot be allocated from. `settings` as
 * above, without `policy`. */
TENURE_API tenure_code tenure_group_create(tenure_device* device, const char* path, const char* settings,
                                           tenure_arena** group);

/** Makes all that a text describes: one tenant a line (or up to a ';'): its path, then its settings. A tenant with others
 * below it is a group unless it has a policy; all others are arenas. They are found by path. A line "*" replaces the one that
 * stood for the same level. All are made or none. */
TENURE_API tenure_code tenure_arenas_create(tenure_device* device, const char* text);

/** TENURE_NOT_FOUND: there is no arena or group at `path`. */
TENURE_API tenure_code tenure_arena_find(tenure_device* device, const char* path, tenure_arena** arena);

/** What tenure_arena_destroy does with blocks that are live. */
enum {
    TENURE_KEEP_LIVE = 0,   /**< TENURE_LIVE_BLOCKS, also for what is kept for graphs, and nothing has happened */
    TENURE_RELEASE_LIVE = 1 /**< they are freed. All work on them must be over */
};

/** Destroys an arena or a group, and gives its memory back. TENURE_BUSY: others still stand below it. */
TENURE_API tenure_code tenure_arena_destroy(tenure_arena* arena, uint32_t flags);

/** Changes what `settings` names of max, high, min and weight, all or nothing. A `max` below what is held takes effect for
 * new requests; `over` (may be null) receives the bytes by which the arena is still over it. TENURE_NOT_ADMITTED: a guarantee
 * that does not fit, or a value that TENURE_ARENAS gives. */
TENURE_API tenure_code tenure_arena_set(tenure_arena* arena, const char* settings, uint64_t* over);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/** Allocates `bytes` bytes for use on `stream` first. 0 bytes give null. `alignment`: a power of two; 0 stands for 256. */
TENURE_API tenure_code tenure_allocate(tenure_arena* arena, void* stream, size_t bytes, size_t alignment,
                                       void** pointer);

/** Frees a block whose last use is ordered before the end of `stream`. `bytes` as they were allocated. Null: nothing. */
TENURE_API tenure_code tenure_free(tenure_arena* arena, void* stream, void* pointer, size_t bytes);

/** The same for memory that every stream may use at once, and whose uses are all over when it is freed. */
TENURE_API tenure_code tenure_allocate_sync(tenure_arena* arena, size_t bytes, size_t alignment,
                                            void** pointer);
TENURE_API tenure_code tenure_free_sync(tenure_arena* arena, void* pointer, size_t bytes);

/** Frees a block on the stream it was allocated on, whatever its size. */
TENURE_API tenure_code tenure_release(tenure_arena* arena, void* pointer);

/** The block is also used on `stream`: after its free it is not handed out before the work that `stream` holds at that time
 * has passed. The stream must live until the free. */
TENURE_API tenure_code tenure_record_use(tenure_arena* arena, void* pointer, void* stream);

/** 1: a live block of the arena starts at `pointer`; 0: none does. */
TENURE_API int tenure_owns(const tenure_arena* arena, const void* pointer);

/** Gives free memory back until at most `keep` bytes are held, or no more can go. `given_back` may be null. */
TENURE_API tenure_code tenure_trim(tenure_arena* arena, uint64_t keep, uint64_t* given_back);

/** The graphs made from this capture (its id: cudaStreamGetCaptureInfo) are gone and their work is over: what was kept
 * for them is free. */
TENURE_API tenure_code tenure_release_captured(tenure_arena* arena, uint64_t capture);

/* ---- blocks that several hold ------------------------------------------------------------------------------------ */

/** A block of the arena (or null) gets a count of those who hold it, 1 at first, and is freed by whoever lets go last: in the
 * order of `stream`, as by tenure_free, or, where that is cudaStreamPerThread, of the stream that it was allocated on. The
 * stream must live until then. After its arena was destroyed nothing is freed. Nobody else may free the block. A
 * tenure_shared that was let go is not recognised. */
TENURE_API tenure_code tenure_share(tenure_arena* arena, void* stream, void* pointer, size_t bytes,
                                    tenure_shared** block);

/** From now on the block may be in use on streams that nobody names: its free waits for all work of the device, and names
 * none, so that none must live until then. In a graph capture it is put off. */
TENURE_API void tenure_shared_anywhere(tenure_shared* block);

/** Lets go. Returns what tenure_free would; TENURE_OK if others still hold it. Null: nothing. */
TENURE_API tenure_code tenure_shared_drop(tenure_shared* block);

/** An array in C order in the block, for DLPack: a DLManagedTensor (`version` 0) or a DLManagedTensorVersioned (1), which
 * holds the block until its deleter is called, on any thread, with or without Python. `type` and `bits` are DLPack's;
 * `shape` is copied. `name` receives what a capsule with it is called, a text that lives for ever. */
TENURE_API tenure_code tenure_dlpack_export(tenure_shared* block, int32_t type, int32_t bits, int32_t dimensions,
                                            const int64_t* shape, int32_t version, void** managed,
                                            const char** name);

typedef void (*tenure_capsule_destructor)(void* capsule);

/** The destructor of a capsule with one, given the addresses of PyCapsule_IsValid and PyCapsule_GetPointer. It keeps the
 * error that Python may have set. Null, if one of them is. */
TENURE_API tenure_capsule_destructor tenure_dlpack_destructor(int (*is_valid)(void*, const char*),
                                                              void* (*pointer)(void*, const char*));

/* ---- what there is to see ---------------------------------------------------------------------------------------- */

/** Bytes unless the name says otherwise. Of a group, what only a pool knows is 0. */
typedef struct tenure_statistics {
    size_t size;
    uint64_t requested;   /**< in live blocks, as asked */
    uint64_t requested_peak;
    uint64_t allocated;   /**< in live blocks, as rounded */
    uint64_t allocated_peak;
    uint64_t reserved;    /**< held by the pool: live, cached and pending blocks */
    uint64_t reserved_peak;
    uint64_t pending;     /**< freed, waiting for work on other streams */
    uint64_t captured;    /**< kept for captured graphs */
    uint64_t blocks;      /**< number of live blocks */
    uint64_t segments;    /**< number of ranges held from the device */
    uint64_t allocations; /**< number of blocks handed out so far */
    uint64_t failures;    /**< number of allocations refused so far */
    uint64_t charged;     /**< held against `max`, by it and all below it, guarantees included */
    uint64_t charged_peak;
    uint64_t used;        /**< the same without guarantees that nobody uses */
    uint64_t min;
    uint64_t high;
    uint64_t max;
    uint64_t weight;      /**< a number */
    uint64_t refused;     /**< number of charges refused so far */
    uint64_t reclaimed;   /**< taken from it for others so far */
    uint64_t borrowed;    /**< given to it by others so far */
    uint64_t scrubbed;    /**< filled with zero before it got them so far */
} tenure_statistics;

TENURE_API tenure_code tenure_get_statistics(const tenure_arena* arena, tenure_statistics* statistics);

/** All arenas and groups of the device as JSON, by the schema docs/schema/arenas-1.json. Give it back with
 * tenure_free_text. */
TENURE_API tenure_code tenure_arenas_json(tenure_device* device, char** text);

/** The segments and blocks of an arena as JSON:
 * {"path", "segments": [{"address", "size", "blocks": [{"address", "size", "requested", "state", "stream"}]}]}, all
 * numbers in bytes, states free, allocated, pending and captured. Give it back with tenure_free_text. */
TENURE_API tenure_code tenure_snapshot_json(const tenure_arena* arena, char** text);

/** For tests: TENURE_INTERNAL if an internal invariant of the arena does not hold. */
TENURE_API tenure_code tenure_validate(const tenure_arena* arena);

#ifdef __cplusplus
}
#endif

#endif
