#ifndef TENURE_TORCH_H
#define TENURE_TORCH_H

/* \file
 * The C interface of libtenure_torch.so, made for ctypes: plain types, no Python, no C++ in it.
 *
 * Results: a function that returns int returns 0 for success and another number for failure; the text of this thread's
 * last failure is then in tenure_torch_last_error(). A function that returns char* returns text that the caller gives
 * back with tenure_torch_free_text(), or null for failure. No function throws, none takes Python's lock, and all may be
 * called from any thread. Sizes are bytes; TENURE_TORCH_NO_LIMIT stands for "no limit".
 *
 * Options are lines "key=value" with '\n' between them, null or "" for none. Bytes as 123, 512MiB, 20GiB; switches as
 * on and off.
 *
 *     key                  where            meaning
 *     policy               all of them      remap (default), caching, best_fit, async, fronted_remap,
 *                                           fronted_caching, fronted_best_fit; an arena's default is the one installed
 *     limit                install          bytes a device may give to all arenas together (default: none)
 *     share                install, pool    on: memory can be given to other processes, or it fails to start; off: only
 *                                           under policy=caching and policy=best_fit, which always can; default: where
 *                                           the device can
 *     <policy's option>    all of them      as `tenure compare` names it, for example slack_divisor=100, mark_bytes=4MiB,
 *                                           segment_bytes=64MiB, max_split=512MiB
 *
 * An unknown key or a bad value is a failure that says what is known.
 */

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TENURE_TORCH_ABI 1
#define TENURE_TORCH_NO_LIMIT UINT64_MAX

/* The value of TENURE_TORCH_ABI that the library was built with. */
int tenure_torch_abi(void);

/* Why this thread's last call failed. Never null; valid until this thread's next call. */
const char* tenure_torch_last_error(void);

/* The version of torch that the library was built against: "2.11.0". */
const char* tenure_torch_built_for(void);

/* The names of the policies, with a space between them; static text. */
const char* tenure_torch_policies(void);

void tenure_torch_free_text(char* text);

/* ---- in charge of all of torch's CUDA memory ---- */

/* Whether this library can serve torch of this version (torch.__version__); the failure's text says what to do. */
int tenure_torch_check(const char* torch_version);

/* Makes tenure torch's allocator, in both of torch's registries, for the rest of the process. If CUDA is already in use,
 * what the former allocator has handed out stays its own. Fails, changing nothing, if installed already with other
 * options; does nothing if with the same. */
int tenure_torch_install(const char* torch_version, const char* options);

/* 1: installed. */
int tenure_torch_installed(void);

/* The bytes that a device may give to all arenas together, from now on; device -1: all devices. */
int tenure_torch_set_limit(int device, uint64_t max_bytes);

/* ---- tenants ---- */

/* An arena: memory of its own on every device, at most max_bytes on each. `*arena` names it from now on, never 0 and
 * never used again; 0 names the default arena "torch", which every thread uses that is in no other. Two live arenas
 * cannot have the same name. Needs no GPU until it is used. */
int tenure_torch_arena_create(const char* name, uint64_t max_bytes, const char* options, uint64_t* arena);

/* The arena with this name. Fails if there is none. */
int tenure_torch_arena_find(const char* name, uint64_t* arena);

/* Nobody can enter the arena any more, and its name is free. Tensors in it live on; its memory goes back to the device
 * as they go. */
int tenure_torch_arena_destroy(uint64_t arena);

/* From now on this thread, and the autograd threads working for it, allocates from the arena, until the matching pop.
 * Memory is freed to the arena it came from, whatever is entered. */
int tenure_torch_arena_push(uint64_t arena);
int tenure_torch_arena_pop(void);

/* The arena that this thread is in. */
uint64_t tenure_torch_arena_current(void);

/* The limit from now on, on this device (-1: on all, and on those used later). Nothing is taken from tensors; while the
 * arena holds more, it gets nothing more. */
int tenure_torch_arena_set_max(uint64_t arena, int device, uint64_t max_bytes);

/* Gives free memory of the arena back to the device (-1: all), down to `keep` bytes held. `*given_back` may be null. */
int tenure_torch_arena_trim(uint64_t arena, int device, uint64_t keep, uint64_t* given_back);

/* JSON, an array: one object per arena and device that it has been used on (or "device": null if on none):
 * {"id", "name", "kind": "arena"|"pool", "policy", "device", "max" (null: none), "charged", "peak", "refused",
 *  "requested", "requested_peak", "allocated", "allocated_peak", "reserved", "reserved_peak", "pending", "captured",
 *  "blocks", "failures", "alive": true|false (destroyed, with tensors left)} */
char* tenure_torch_arenas(void);

/* ---- a segment source for torch.cuda.MemPool, with torch's own allocator in charge ---- */

/* An arena for `torch._C._cuda_customAllocator(alloc_fn, free_fn)`: two C functions of the types
 * void* (size_t, int device, cudaStream_t) and void (void*, size_t, int device, cudaStream_t), as integers. Works with
 * and without tenure_torch_install. At most 64 exist at once. Its id works for set_max, trim and destroy; destroy fails
 * while memory of it is live. */
int tenure_torch_pool_create(const char* name, uint64_t max_bytes, const char* options, uint64_t* arena,
                             void** alloc_fn, void** free_fn);

/* ---- diagnosis ---- */

/* JSON, an object, for one device: {"installed", "device", "limit" (null: none), "fraction", "charged", "peak",
 * "device_allocations", "device_frees", "foreign_frees" (memory of the former allocator freed through this one),
 * "former_allocator" (its name, or null if it never held memory), "capturing", "private_pools": [...]} */
char* tenure_torch_stats(int device);

/* Checks all invariants of all devices, for tests: 0 if they hold. */
int tenure_torch_validate(void);

#ifdef __cplusplus
}
#endif

#endif
