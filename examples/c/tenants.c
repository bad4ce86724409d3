/* Two tenants of one device, in C: each has a hard limit, and the one that asks for too much is told whose limit it was.
 *
 *     cc -std=c11 tenants.c $(pkg-config --cflags --libs tenure-c) && ./a.out cuda:0
 *
 * Without an argument it runs on the simulated device, so on any machine. */

#include <tenure/tenure.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define MIB ((size_t)1 << 20)

/* Ends the program with the library's own sentence. */
static void must(tenure_code code, const char* doing) {
    if (code == TENURE_OK) return;
    fprintf(stderr, "%s: %s: %s\n", doing, tenure_code_name(code), tenure_last_error());
    exit(EXIT_FAILURE);
}

static void print(const char* name, const tenure_arena* arena) {
    tenure_statistics s = {.size = sizeof s};
    must(tenure_get_statistics(arena, &s), "statistics");
    printf("%-6s %" PRIu64 " MiB in blocks, %" PRIu64 " MiB held of max %" PRIu64 " MiB\n", name,
           s.requested / MIB, s.charged / MIB, s.max / MIB);
}

int main(int argc, char** argv) {
    tenure_device* device;
    tenure_arena *alice, *bob;
    void *stream, *a, *b;

    must(tenure_device_open(argc > 1 ? argv[1] : "sim", NULL, &device), "opening the device");
    must(tenure_arenas_create(device, "gpu        max=512MiB\n"
                                      "gpu/alice  max=256MiB\n"
                                      "gpu/bob    max=128MiB policy=caching"),
         "making the arenas");
    must(tenure_arena_find(device, "gpu/alice", &alice), "finding alice");
    must(tenure_arena_find(device, "gpu/bob", &bob), "finding bob");
    must(tenure_stream_create(device, &stream), "creating a stream"); /* any cudaStream_t will do */

    must(tenure_allocate(alice, stream, 200 * MIB, 0, &a), "allocating for alice");
    must(tenure_allocate(bob, stream, 100 * MIB, 0, &b), "allocating for bob");
    print("alice", alice);
    print("bob", bob);

    void* more;
    const tenure_code code = tenure_allocate(bob, stream, 100 * MIB, 0, &more);
    if (code != TENURE_OVER_LIMIT) {
        fprintf(stderr, "bob was given more than his limit\n");
        return EXIT_FAILURE;
    }
    tenure_failure why = {.size = sizeof why};
    must(tenure_get_failure(&why), "asking why");
    printf("bob is refused by %s: %s\n", why.arena, tenure_last_error());

    /* A block of alice's, freed by bob by mistake, stays hers. */
    printf("bob frees what is not his: %s\n", tenure_code_name(tenure_free(bob, stream, a, 200 * MIB)));

    must(tenure_free(alice, stream, a, 200 * MIB), "freeing alice's");
    must(tenure_free(bob, stream, b, 100 * MIB), "freeing bob's");
    must(tenure_stream_destroy(device, stream), "destroying the stream");

    tenure_arena* gpu;
    must(tenure_arena_find(device, "gpu", &gpu), "finding the group");
    must(tenure_arena_destroy(alice, TENURE_KEEP_LIVE), "destroying alice");
    must(tenure_arena_destroy(bob, TENURE_KEEP_LIVE), "destroying bob");
    must(tenure_arena_destroy(gpu, TENURE_KEEP_LIVE), "destroying the group");
    must(tenure_device_close(device), "closing the device");
    return EXIT_SUCCESS;
}
