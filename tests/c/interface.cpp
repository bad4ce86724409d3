// The C interface on the simulated device, through libtenure.so as its users have it.

#include "support/catch.hpp"

#include <tenure/tenure.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

namespace {

constexpr std::size_t KiB = 1024;
constexpr std::size_t MiB = 1024 * KiB;

std::string error() {
    return tenure_last_error();
}

struct opened {
    explicit opened(const char* options = "capacity=256MiB") {
        REQUIRE(tenure_device_open("sim", options, &device) == TENURE_OK);
    }
    ~opened() { CHECK(tenure_device_close(device) == TENURE_OK); }
    opened(const opened&) = delete;
    opened& operator=(const opened&) = delete;

    tenure_arena* arena(const char* path, const char* settings = nullptr) const {
        tenure_arena* a = nullptr;
        INFO(error());
        REQUIRE(tenure_arena_create(device, path, settings, &a) == TENURE_OK);
        return a;
    }
    tenure_arena* group(const char* path, const char* settings = nullptr) const {
        tenure_arena* g = nullptr;
        REQUIRE(tenure_group_create(device, path, settings, &g) == TENURE_OK);
        return g;
    }
    std::uint64_t free_bytes() const {
        tenure_device_info info{};
        info.size = sizeof info;
        REQUIRE(tenure_device_get_info(device, &info) == TENURE_OK);
        return info.free;
    }

    tenure_device* device = nullptr;
};

tenure_statistics statistics(const tenure_arena* a) {
    tenure_statistics s{};
    s.size = sizeof s;
    REQUIRE(tenure_get_statistics(a, &s) == TENURE_OK);
    return s;
}

void destroy(tenure_arena* a) {
    INFO(error());
    REQUIRE(tenure_arena_destroy(a, TENURE_KEEP_LIVE) == TENURE_OK);
}

/// A variable of the environment, for a while.
struct variable {
    variable(const char* n, const char* value) : name(n) { ::setenv(name, value, 1); }
    ~variable() { ::unsetenv(name); }
    variable(const variable&) = delete;
    variable& operator=(const variable&) = delete;
    const char* name;
};

} // namespace

TEST_CASE("C: a block of every policy can be written, read, freed and had again", "[c]") {
    std::string names = tenure_policies();
    std::vector<std::string> policies;
    for (std::size_t at = 0; at < names.size();) {
        const std::size_t end = std::min(names.find(' ', at), names.size());
        policies.push_back(names.substr(at, end - at));
        at = end + 1;
    }
    REQUIRE(policies.size() == 7);

    const opened sim("capacity=256MiB shelf=0");
    for (const std::string& policy : policies) {
        CAPTURE(policy);
        tenure_arena* const a = sim.arena("job", ("max=64MiB policy=" + policy).c_str());
        void* stream = nullptr;
        REQUIRE(tenure_stream_create(sim.device, &stream) == TENURE_OK);
        for (int round = 0; round < 3; ++round) {
            void* p = nullptr;
            void* q = nullptr;
            REQUIRE(tenure_allocate(a, stream, 3 * MiB, 0, &p) == TENURE_OK);
            REQUIRE(tenure_allocate(a, nullptr, 100, 4096, &q) == TENURE_OK);
            CHECK(reinterpret_cast<std::uintptr_t>(p) % 256 == 0);
            CHECK(reinterpret_cast<std::uintptr_t>(q) % 4096 == 0);
            std::memset(p, round, 3 * MiB);
            std::memset(q, 0xff, 100);
            CHECK(static_cast<unsigned char*>(p)[3 * MiB - 1] == round);
            CHECK(tenure_owns(a, p) == 1);
            CHECK(statistics(a).blocks == 2);
            CHECK(statistics(a).requested == 3 * MiB + 100);
            CHECK(tenure_record_use(a, p, nullptr) == TENURE_OK);
            CHECK(tenure_free(a, stream, p, 3 * MiB) == TENURE_OK);
            CHECK(tenure_release(a, q) == TENURE_OK);
            CHECK(tenure_owns(a, p) == 0);
        }
        void* s = nullptr;
        REQUIRE(tenure_allocate_sync(a, MiB, 0, &s) == TENURE_OK);
        std::memset(s, 1, MiB);
        CHECK(tenure_free_sync(a, s, MiB) == TENURE_OK);
        CHECK(tenure_stream_synchronize(sim.device, stream) == TENURE_OK);
        CHECK(tenure_validate(a) == TENURE_OK);
        CHECK(statistics(a).requested == 0);
        CHECK(statistics(a).allocations == 7);
        std::uint64_t given = 0;
        CHECK(tenure_trim(a, 0, &given) == TENURE_OK);
        CHECK(statistics(a).charged == 0);
        CHECK(tenure_stream_destroy(sim.device, stream) == TENURE_OK);
        destroy(a);
    }
    CHECK(sim.free_bytes() == 256 * MiB); // nothing has leaked
}

TEST_CASE("C: the limit holds, and the failure says whose it was", "[c]") {
    const opened sim;
    tenure_arena* const gpu = sim.group("gpu", "max=32MiB");
    tenure_arena* const a = sim.arena("gpu/a", "max=16MiB");
    tenure_arena* const b = sim.arena("gpu/b");

    void* p = nullptr;
    REQUIRE(tenure_allocate(a, nullptr, 20 * MiB, 0, &p) == TENURE_OVER_LIMIT);
    CHECK(p == nullptr);
    CHECK(error().find("out of memory: tried to allocate 20 MiB") == 0);
    tenure_failure f{};
    f.size = sizeof f;
    REQUIRE(tenure_get_failure(&f) == TENURE_OK);
    CHECK(std::string(f.arena) == "gpu/a");
    CHECK(std::string(f.cause) == "arena_limit");
    CHECK(f.requested == 20 * MiB);
    CHECK(f.max == 16 * MiB);

    REQUIRE(tenure_allocate(a, nullptr, 16 * MiB, 0, &p) == TENURE_OK);
    void* q = nullptr;
    REQUIRE(tenure_allocate(b, nullptr, 20 * MiB, 0, &q) == TENURE_OVER_LIMIT);
    REQUIRE(tenure_get_failure(&f) == TENURE_OK);
    CHECK(std::string(f.arena) == "gpu");
    CHECK(std::string(f.cause) == "ancestor_limit");
    CHECK(statistics(gpu).used == 16 * MiB);
    CHECK(statistics(a).failures == 1);

    CHECK(tenure_free(a, nullptr, p, 16 * MiB) == TENURE_OK);
    REQUIRE(tenure_allocate(b, nullptr, 20 * MiB, 0, &q) == TENURE_OK); // what a holds idle is taken
    CHECK(tenure_free(b, nullptr, q, 20 * MiB) == TENURE_OK);
    destroy(a);
    destroy(b);
    destroy(gpu);
}

TEST_CASE("C: a device without memory left says so", "[c]") {
    const opened sim("capacity=16MiB");
    tenure_arena* const a = sim.arena("a");
    void* p = nullptr;
    CHECK(tenure_allocate(a, nullptr, 64 * MiB, 0, &p) == TENURE_OUT_OF_MEMORY);
    CHECK(tenure_allocate(a, nullptr, SIZE_MAX, 0, &p) != TENURE_OK);
    CHECK(tenure_allocate(a, nullptr, SIZE_MAX - 100, 1 << 20, &p) != TENURE_OK);
    CHECK(tenure_allocate(a, nullptr, MiB, 3, &p) == TENURE_INVALID_ARGUMENT);
    CHECK(p == nullptr);
    CHECK(tenure_allocate_sync(a, 64 * MiB, 0, &p) == TENURE_OUT_OF_MEMORY);
    CHECK(tenure_allocate(a, nullptr, 8 * MiB, 0, &p) == TENURE_OK);
    CHECK(tenure_free(a, nullptr, p, 8 * MiB) == TENURE_OK);
    destroy(a);
}

TEST_CASE("C: misuse is a code, and frees nothing", "[c]") {
    const opened sim;
    for (const char* policy : {"policy=remap", "policy=best_fit", "policy=fronted_caching"}) {
        CAPTURE(policy);
        tenure_arena* const a = sim.arena("a", policy);
        tenure_arena* const b = sim.arena("b", policy);
        void* p = nullptr;
        REQUIRE(tenure_allocate(a, nullptr, MiB, 0, &p) == TENURE_OK);

        int here = 0;
        CHECK(tenure_free(a, nullptr, &here, 4) == TENURE_FOREIGN_POINTER);
        CHECK(tenure_free(b, nullptr, p, MiB) == TENURE_WRONG_ARENA);
        CHECK(error().find("belongs to arena \"a\"") != std::string::npos);
        CHECK(tenure_free(a, nullptr, static_cast<char*>(p) + 512, MiB) == TENURE_INTERIOR_POINTER);
        CHECK(tenure_free(a, nullptr, p, 2 * MiB) == TENURE_SIZE_MISMATCH);
        CHECK(tenure_free_sync(a, p, 5) == TENURE_SIZE_MISMATCH);
        CHECK(tenure_release(b, p) == TENURE_WRONG_ARENA);
        CHECK(tenure_record_use(b, p, nullptr) == TENURE_WRONG_ARENA);
        CHECK(tenure_owns(a, p) == 1);

        CHECK(tenure_arena_destroy(a, TENURE_KEEP_LIVE) == TENURE_LIVE_BLOCKS);
        CHECK(error().find("1 live block") != std::string::npos);
        CHECK(tenure_free(a, nullptr, p, MiB) == TENURE_OK);
        CHECK(tenure_free(a, nullptr, p, MiB) != TENURE_OK);
        CHECK(tenure_free(a, nullptr, nullptr, 7) == TENURE_OK);

        REQUIRE(tenure_allocate(a, nullptr, MiB, 0, &p) == TENURE_OK);
        CHECK(tenure_arena_destroy(a, TENURE_RELEASE_LIVE) == TENURE_OK);
        destroy(b);
    }
}

TEST_CASE("C: handles that are none, or no more", "[c]") {
    opened sim;
    void* p = nullptr;
    std::uint64_t n = 0;
    char* text = nullptr;
    tenure_arena* a = nullptr;
    CHECK(tenure_allocate(nullptr, nullptr, 1, 0, &p) == TENURE_INVALID_HANDLE);
    CHECK(tenure_free(nullptr, nullptr, p, 1) == TENURE_INVALID_HANDLE);
    CHECK(tenure_trim(nullptr, 0, &n) == TENURE_INVALID_HANDLE);
    CHECK(tenure_arenas_json(nullptr, &text) == TENURE_INVALID_HANDLE);
    CHECK(tenure_owns(nullptr, &p) == 0);

    a = sim.arena("a");
    CHECK(tenure_allocate(a, nullptr, 1, 0, nullptr) == TENURE_INVALID_ARGUMENT);
    CHECK(tenure_get_statistics(a, nullptr) == TENURE_INVALID_ARGUMENT);
    tenure_statistics unset{};
    CHECK(tenure_get_statistics(a, &unset) == TENURE_INVALID_ARGUMENT);
    CHECK(tenure_arena_destroy(a, 0x80) == TENURE_INVALID_ARGUMENT);
    CHECK(tenure_device_close(sim.device) == TENURE_BUSY);
    destroy(a);
    CHECK(tenure_allocate(a, nullptr, 1, 0, &p) == TENURE_INVALID_HANDLE);
    CHECK(tenure_arena_destroy(a, 0) == TENURE_INVALID_HANDLE);

    tenure_arena* const g = sim.group("g");
    CHECK(tenure_allocate(g, nullptr, 1, 0, &p) == TENURE_INVALID_ARGUMENT);
    CHECK(error().find("group") != std::string::npos);
    CHECK(statistics(g).reserved == 0);
    tenure_arena* const below = sim.arena("g/a");
    CHECK(tenure_arena_destroy(g, TENURE_RELEASE_LIVE) == TENURE_BUSY);
    destroy(below);
    destroy(g);

    tenure_device* other = nullptr;
    REQUIRE(tenure_device_open("sim", nullptr, &other) == TENURE_OK);
    REQUIRE(tenure_device_close(other) == TENURE_OK);
    CHECK(tenure_device_close(other) == TENURE_INVALID_HANDLE);
}

TEST_CASE("C: texts that cannot be read say where", "[c]") {
    tenure_device* d = nullptr;
    CHECK(tenure_device_open("gpu", nullptr, &d) == TENURE_INVALID_ARGUMENT);
    CHECK(tenure_device_open("cuda:x", nullptr, &d) == TENURE_INVALID_ARGUMENT);
    CHECK(tenure_device_open("sim", "colour=red", &d) == TENURE_INVALID_CONFIGURATION);
    CHECK(tenure_device_open("sim", "capacity=1GB", &d) == TENURE_INVALID_CONFIGURATION);
    CHECK(tenure_device_open("sim", "scrub=maybe", &d) == TENURE_INVALID_CONFIGURATION);
    CHECK(tenure_device_open(nullptr, nullptr, &d) == TENURE_INVALID_ARGUMENT);
    CHECK(d == nullptr);

    const opened sim;
    tenure_arena* a = nullptr;
    const auto make = [&](const char* path, const char* settings) {
        return tenure_arena_create(sim.device, path, settings, &a);
    };
    CHECK(make("a", "max=8") == TENURE_OK); // bytes
    destroy(a);
    a = nullptr;
    CHECK(make("a", "max=eight") == TENURE_INVALID_CONFIGURATION);
    CHECK(error().find("eight") != std::string::npos);
    CHECK(make("a", "maximum=8") == TENURE_INVALID_CONFIGURATION);
    CHECK(error().find("known: max min high weight policy") != std::string::npos);
    CHECK(make("a", "policy=best") == TENURE_INVALID_CONFIGURATION);
    CHECK(error().find("known: remap caching") != std::string::npos);
    CHECK(make("a", "policy=caching:colour=red") == TENURE_INVALID_CONFIGURATION);
    CHECK(error().find("max_split") != std::string::npos);
    CHECK(make("a", "policy=async:reuse=on") == TENURE_INVALID_CONFIGURATION);
    CHECK(error().find("max_bytes reuse_follows_events reuse_when_passed reuse_makes_streams_wait") !=
          std::string::npos);
    CHECK(make("a", "max=1MiB; b max=2MiB") == TENURE_INVALID_CONFIGURATION);
    CHECK(make("", nullptr) == TENURE_INVALID_CONFIGURATION);
    CHECK(make("a//b", nullptr) == TENURE_INVALID_CONFIGURATION);
    CHECK(make("a b", nullptr) == TENURE_INVALID_CONFIGURATION);
    CHECK(make("*", nullptr) == TENURE_INVALID_CONFIGURATION);
    CHECK(make("nobody/a", nullptr) == TENURE_NOT_FOUND);
    CHECK(make(nullptr, nullptr) == TENURE_INVALID_ARGUMENT);
    CHECK(tenure_group_create(sim.device, "g", "policy=remap", &a) == TENURE_INVALID_CONFIGURATION);
    CHECK(a == nullptr);

    destroy(sim.arena("a", "policy=async:reuse_when_passed=off,reuse_makes_streams_wait=off"));
    a = sim.arena("a", "policy=caching:max_split=64MiB");
    tenure_arena* again = nullptr;
    CHECK(tenure_arena_create(sim.device, "a", nullptr, &again) == TENURE_EXISTS);
    CHECK(again == nullptr);
    destroy(a);
    for (tenure_code c = -1; c < 64; ++c) CHECK(std::strlen(tenure_code_name(c)) != 0);
}

TEST_CASE("C: a whole tree from one text, all of it or nothing", "[c]") {
    const opened sim;
    REQUIRE(tenure_arenas_create(sim.device, "gpu max=128MiB\n"
                                             "gpu/a max=32MiB min=8MiB policy=caching  # with a comment\n"
                                             "gpu/b max=16MiB; gpu/* max=4MiB") == TENURE_OK);
    tenure_arena* a = nullptr;
    tenure_arena* b = nullptr;
    tenure_arena* gpu = nullptr;
    REQUIRE(tenure_arena_find(sim.device, "gpu/a", &a) == TENURE_OK);
    REQUIRE(tenure_arena_find(sim.device, "gpu/b", &b) == TENURE_OK);
    REQUIRE(tenure_arena_find(sim.device, "gpu", &gpu) == TENURE_OK);
    CHECK(tenure_arena_find(sim.device, "gpu/c", &a) == TENURE_NOT_FOUND);
    CHECK(statistics(a).min == 8 * MiB);
    tenure_arena* const c = sim.arena("gpu/c");
    CHECK(statistics(c).max == 4 * MiB);
    REQUIRE(tenure_arenas_create(sim.device, "* max=3MiB") == TENURE_OK);
    REQUIRE(tenure_arenas_create(sim.device, "* max=2MiB policy=caching") == TENURE_OK);
    tenure_arena* const d = sim.arena("d");
    CHECK(statistics(d).max == 2 * MiB);              // the later line
    tenure_arena* const beside = sim.group("beside"); // the policy beside is none of a group's
    CHECK(statistics(beside).max == 2 * MiB);

    char* text = nullptr;
    REQUIRE(tenure_arenas_json(sim.device, &text) == TENURE_OK);
    CHECK(std::string(text).find(R"("path":"gpu/c")") != std::string::npos);
    tenure_free_text(text);

    CHECK(tenure_arenas_create(sim.device, "new max=1MiB; gpu/a max=2MiB") != TENURE_OK);
    tenure_arena* none = nullptr;
    CHECK(tenure_arena_find(sim.device, "new", &none) == TENURE_NOT_FOUND);
    CHECK(tenure_arenas_create(sim.device, "x min=2MiB max=1MiB") == TENURE_INVALID_CONFIGURATION);
    CHECK(error().find("1:1") != std::string::npos);

    std::uint64_t over = 7;
    CHECK(tenure_arena_set(a, "max=64MiB weight=200", &over) == TENURE_OK);
    CHECK(over == 0);
    CHECK(statistics(a).max == 64 * MiB);
    CHECK(statistics(a).min == 8 * MiB);
    CHECK(statistics(a).weight == 200);
    CHECK(tenure_arena_set(a, "min=512MiB max=none", nullptr) == TENURE_NOT_ADMITTED);
    CHECK(statistics(a).max == 64 * MiB);
    CHECK(tenure_arena_set(a, "policy=remap", nullptr) == TENURE_INVALID_CONFIGURATION);
    for (tenure_arena* t : {a, b, c, d, beside, gpu}) destroy(t);
}

TEST_CASE("C: what the operator says holds over what the program says", "[c]") {
    const variable config("TENURE_ARENAS", "gpu max=64MiB; gpu/a max=8MiB policy=best_fit; gpu/* max=2MiB");
    const opened sim;
    tenure_arena* const a = sim.arena("gpu/a", "max=1GiB"); // the group above it is made, too
    tenure_arena* const b = sim.arena("gpu/b", "max=1GiB");
    CHECK(statistics(a).max == 8 * MiB);
    CHECK(statistics(b).max == 2 * MiB);
    tenure_arena* gpu = nullptr;
    REQUIRE(tenure_arena_find(sim.device, "gpu", &gpu) == TENURE_OK);
    CHECK(statistics(gpu).max == 64 * MiB);
    for (tenure_arena* t : {a, b, gpu}) destroy(t);

    const variable wrong("TENURE_ARENAS", "gpu max=lots");
    tenure_device* d = nullptr;
    CHECK(tenure_device_open("sim", nullptr, &d) == TENURE_INVALID_CONFIGURATION);
    CHECK(error().find("TENURE_ARENAS:1:9") == 0);
}

TEST_CASE("C: the operator's values are not changed by the program", "[c]") {
    const variable config("TENURE_ARENAS", "gpu max=64MiB; gpu/a max=8MiB");
    const opened sim;
    tenure_arena* const a = sim.arena("gpu/a", "min=4MiB");
    CHECK(statistics(a).min == 4 * MiB); // the operator says nothing of it
    CHECK(tenure_arena_set(a, "max=none", nullptr) == TENURE_NOT_ADMITTED);
    CHECK(error().find("TENURE_ARENAS") != std::string::npos);
    CHECK(tenure_arena_set(a, "min=0 max=1GiB", nullptr) == TENURE_NOT_ADMITTED);
    CHECK(statistics(a).max == 8 * MiB);
    CHECK(statistics(a).min == 4 * MiB);
    CHECK(tenure_arena_set(a, "min=0", nullptr) == TENURE_OK);
    CHECK(statistics(a).min == 0);

    // The group above it came of the operator's line; the program may still make it its own, within that line.
    tenure_arena* const gpu = sim.group("gpu", "max=1GiB high=32MiB");
    CHECK(statistics(gpu).max == 64 * MiB);
    CHECK(statistics(gpu).high == 32 * MiB);
    tenure_arena* again = nullptr;
    CHECK(tenure_group_create(sim.device, "gpu", nullptr, &again) == TENURE_EXISTS);
    destroy(a);
    destroy(gpu);
}

TEST_CASE("C: a refused creation leaves nothing behind", "[c]") {
    const variable config("TENURE_ARENAS", "gpu max=64MiB");
    const opened sim; // its end would say that something stands there
    tenure_arena* a = nullptr;
    CHECK(tenure_arena_create(sim.device, "gpu/b", "policy=nope", &a) == TENURE_INVALID_CONFIGURATION);
    CHECK(tenure_arena_create(sim.device, "gpu/b", "min=128MiB", &a) == TENURE_NOT_ADMITTED);
    CHECK(tenure_arena_find(sim.device, "gpu", &a) == TENURE_NOT_FOUND);
}

TEST_CASE("C: limits change together or not at all", "[c]") {
    const opened sim;
    tenure_arena* const a = sim.arena("a", "max=8MiB");
    CHECK(tenure_arena_set(a, "min=16MiB max=32MiB", nullptr) == TENURE_OK);
    CHECK(statistics(a).min == 16 * MiB);
    CHECK(statistics(a).max == 32 * MiB);
    CHECK(tenure_arena_set(a, "max=1MiB", nullptr) ==
          TENURE_INVALID_CONFIGURATION); // below what is guaranteed
    CHECK(statistics(a).max == 32 * MiB);
    CHECK(tenure_arena_set(a, "min=0 max=1MiB", nullptr) == TENURE_OK);
    CHECK(statistics(a).max == MiB);
    destroy(a);
}

TEST_CASE("C: a file of limits that cannot be read is named", "[c]") {
    const variable config("TENURE_ARENAS", "/no/such/file.conf");
    tenure_device* device = nullptr;
    CHECK(tenure_device_open("sim", nullptr, &device) == TENURE_INVALID_CONFIGURATION);
    CHECK(error().find("/no/such/file.conf") != std::string::npos);
}

TEST_CASE("C: memory that changes hands is wiped", "[c]") {
    const opened sim;
    tenure_arena* const a = sim.arena("a", "policy=best_fit");
    tenure_arena* const b = sim.arena("b", "policy=best_fit");
    void* p = nullptr;
    REQUIRE(tenure_allocate(a, nullptr, 8 * MiB, 0, &p) == TENURE_OK);
    std::memset(p, 0x5a, 8 * MiB);
    REQUIRE(tenure_free(a, nullptr, p, 8 * MiB) == TENURE_OK);
    REQUIRE(tenure_trim(a, 0, nullptr) == TENURE_OK);
    void* q = nullptr;
    REQUIRE(tenure_allocate(b, nullptr, 8 * MiB, 0, &q) == TENURE_OK);
    std::size_t dirty = 0;
    for (std::size_t i = 0; i < 8 * MiB; ++i) dirty += static_cast<unsigned char*>(q)[i] != 0;
    CHECK(dirty == 0);
    CHECK(statistics(b).scrubbed >= 8 * MiB);
    REQUIRE(tenure_free(b, nullptr, q, 8 * MiB) == TENURE_OK);
    destroy(a);
    destroy(b);
}

TEST_CASE("C: structs of older and newer callers", "[c]") {
    const opened sim;
    tenure_arena* const a = sim.arena("a", "max=1MiB");
    struct {
        tenure_statistics s;
        unsigned char behind[64];
    } newer{};
    std::memset(&newer, 0xee, sizeof newer);
    newer.s.size = sizeof newer;
    CHECK(tenure_get_statistics(a, &newer.s) == TENURE_OK);
    CHECK(newer.s.size == sizeof(tenure_statistics));
    CHECK(newer.behind[0] == 0xee);

    tenure_statistics older{};
    std::memset(&older, 0xee, sizeof older);
    older.size = offsetof(tenure_statistics, pending);
    CHECK(tenure_get_statistics(a, &older) == TENURE_OK);
    CHECK(older.size == offsetof(tenure_statistics, pending));
    CHECK(older.reserved_peak == 0);
    CHECK(older.pending == 0xeeeeeeeeeeeeeeee);
    destroy(a);
}

TEST_CASE("C: a picture of an arena", "[c]") {
    const opened sim;
    tenure_arena* const a = sim.arena("a", "policy=best_fit");
    void* p = nullptr;
    REQUIRE(tenure_allocate(a, nullptr, 1000, 0, &p) == TENURE_OK);
    char* text = nullptr;
    REQUIRE(tenure_snapshot_json(a, &text) == TENURE_OK);
    const std::string picture = text;
    tenure_free_text(text);
    CHECK(picture.find(R"({"path":"a","segments":[{"address":)") == 0);
    CHECK(picture.find(R"("requested":1000,"state":"allocated")") != std::string::npos);
    CHECK(picture.find("\"address\":" + std::to_string(reinterpret_cast<std::uintptr_t>(p))) !=
          std::string::npos);
    CHECK(tenure_free(a, nullptr, p, 1000) == TENURE_OK);
    destroy(a);
}

namespace {

struct tensor {
    void* data;
    std::int32_t device_type, device_id, dimensions;
    std::uint8_t code, bits;
    std::uint16_t lanes;
    std::int64_t *shape, *strides;
    std::uint64_t offset;
};
struct managed {
    struct tensor tensor;
    void* context;
    void (*deleter)(void*);
};
struct versioned {
    std::uint32_t major, minor;
    void* context;
    void (*deleter)(void*);
    std::uint64_t flags;
    struct tensor tensor;
};

/// A capsule of Python's, as far as its destructor sees it.
struct capsule {
    const char* name;
    void* pointer;
    static int is_valid(void* c, const char* name) {
        return std::strcmp(static_cast<capsule*>(c)->name, name) == 0 ? 1 : 0;
    }
    static void* get(void* c, const char*) { return static_cast<capsule*>(c)->pointer; }
};

struct shared {
    shared(tenure_arena* a, std::size_t bytes, void* stream = nullptr) {
        REQUIRE(tenure_allocate(a, stream, bytes, 0, &pointer) == TENURE_OK);
        REQUIRE(tenure_share(a, stream, pointer, bytes, &block) == TENURE_OK);
    }
    template <class Form>
    Form* lend(const std::vector<std::int64_t>& shape, capsule* in = nullptr) const {
        void* made = nullptr;
        const char* name = nullptr;
        REQUIRE(tenure_dlpack_export(block, 2, 32, static_cast<std::int32_t>(shape.size()), shape.data(),
                                     std::is_same_v<Form, versioned> ? 1 : 0, &made, &name) == TENURE_OK);
        if (in != nullptr) *in = {name, made};
        return static_cast<Form*>(made);
    }
    void* pointer = nullptr;
    tenure_shared* block = nullptr;
};

} // namespace

TEST_CASE("C: a block that several hold is freed by the last", "[c][dlpack]") {
    const opened sim;
    tenure_arena* const a = sim.arena("a");
    const shared s(a, 24 * sizeof(float));
    auto* const old = s.lend<managed>({2, 3, 4});
    auto* const now = s.lend<versioned>({24});
    CHECK(old->tensor.data == s.pointer);
    CHECK(old->tensor.device_type == 1);
    CHECK(old->tensor.dimensions == 3);
    CHECK(old->tensor.code == 2);
    CHECK(old->tensor.bits == 32);
    CHECK(old->tensor.lanes == 1);
    CHECK(std::vector<std::int64_t>(old->tensor.shape, old->tensor.shape + 3) ==
          std::vector<std::int64_t>{2, 3, 4});
    CHECK(std::vector<std::int64_t>(old->tensor.strides, old->tensor.strides + 3) ==
          std::vector<std::int64_t>{12, 4, 1});
    CHECK(now->major == 1);
    CHECK(now->tensor.shape[0] == 24);

    void* made = nullptr;
    const char* name = nullptr;
    for (const std::vector<std::int64_t>& wrong :
         {std::vector<std::int64_t>{25}, {5, 5}, {-1}, {INT64_MAX, INT64_MAX}, {1 << 30, 1 << 30, 16}})
        CHECK(tenure_dlpack_export(s.block, 2, 32, static_cast<std::int32_t>(wrong.size()), wrong.data(), 0,
                                   &made, &name) == TENURE_INVALID_ARGUMENT);
    CHECK(tenure_dlpack_export(s.block, 2, 7, 0, nullptr, 0, &made, &name) == TENURE_INVALID_ARGUMENT);
    CHECK(tenure_dlpack_export(nullptr, 2, 32, 0, nullptr, 0, &made, &name) == TENURE_INVALID_ARGUMENT);

    CHECK(tenure_shared_drop(s.block) == TENURE_OK);
    now->deleter(now);
    CHECK(statistics(a).blocks == 1);
    std::thread([old] { old->deleter(old); }).join(); // a thread that the library has not seen
    CHECK(statistics(a).blocks == 0);

    // What nobody takes out of a capsule ends with it; what was taken has another name.
    const tenure_capsule_destructor end = tenure_dlpack_destructor(&capsule::is_valid, &capsule::get);
    REQUIRE(end != nullptr);
    CHECK(tenure_dlpack_destructor(nullptr, &capsule::get) == nullptr);
    const shared t(a, 400);
    capsule kept{};
    capsule taken{};
    t.lend<managed>({100}, &kept);
    auto* const mine = t.lend<versioned>({0, 7}, &taken);
    CHECK(std::string(kept.name) == "dltensor");
    CHECK(std::string(taken.name) == "dltensor_versioned");
    taken.name = "used_dltensor_versioned";
    end(&kept);
    end(&taken);
    CHECK(tenure_shared_drop(t.block) == TENURE_OK);
    CHECK(statistics(a).blocks == 1);
    mine->deleter(mine);
    CHECK(statistics(a).blocks == 0);

    tenure_shared* none = nullptr;
    int here = 0;
    CHECK(tenure_share(a, nullptr, &here, 4, &none) == TENURE_FOREIGN_POINTER);
    REQUIRE(tenure_share(a, nullptr, nullptr, 0, &none) == TENURE_OK); // an empty array
    CHECK(tenure_shared_drop(none) == TENURE_OK);
    CHECK(tenure_shared_drop(nullptr) == TENURE_OK);

    const shared after(a, 100);
    auto* const last = after.lend<managed>({25});
    CHECK(tenure_arena_destroy(a, TENURE_RELEASE_LIVE) == TENURE_OK);
    CHECK(tenure_shared_drop(after.block) == TENURE_OK);
    last->deleter(last);
}

TEST_CASE("C: a free for streams that nobody names needs none of them", "[c][dlpack]") {
    const opened sim;
    for (const char* policy : {"policy=remap", "policy=best_fit", "policy=caching", "policy=async"}) {
        CAPTURE(policy);
        tenure_arena* const a = sim.arena("a", policy);
        void* stream = nullptr;
        REQUIRE(tenure_stream_create(sim.device, &stream) == TENURE_OK);
        const shared s(a, MiB, stream);
        tenure_shared_anywhere(s.block);
        REQUIRE(tenure_stream_destroy(sim.device, stream) == TENURE_OK);
        CHECK(tenure_shared_drop(s.block) == TENURE_OK);
        CHECK(statistics(a).blocks == 0);
        destroy(a);
    }
    tenure_shared_anywhere(nullptr);
}

TEST_CASE("C: an arena is destroyed while no call is in it", "[c][threads]") {
    const opened sim;
    std::atomic<tenure_arena*> now{sim.arena("a", "policy=fronted_best_fit")};
    std::atomic<bool> stop{false};
    std::atomic<int> wrong{0};
    const auto fits = [](tenure_code c) { return c == TENURE_OK || c == TENURE_INVALID_HANDLE; };
    std::vector<std::thread> users;
    for (int t = 0; t < 3; ++t)
        users.emplace_back([&] {
            while (!stop) {
                tenure_arena* const a = now;
                void* p = nullptr;
                tenure_code c = tenure_allocate(a, nullptr, 1000, 0, &p);
                wrong += !fits(c);
                if (c != TENURE_OK) continue;
                tenure_shared* block = nullptr;
                c = tenure_share(a, nullptr, p, 1000, &block);
                wrong += !fits(c);
                if (c == TENURE_OK) wrong += tenure_shared_drop(block) != TENURE_OK;
                tenure_statistics s{};
                s.size = sizeof s;
                wrong += !fits(tenure_get_statistics(a, &s));
                wrong += !fits(tenure_arena_set(a, "weight=7", nullptr));
            }
        });
    std::thread rival([&] {
        while (!stop) {
            const tenure_code c = tenure_arena_destroy(now, TENURE_KEEP_LIVE);
            wrong += !fits(c) && c != TENURE_LIVE_BLOCKS;
        }
    });
    for (int i = 0; i < 200; ++i) {
        wrong += !fits(tenure_arena_destroy(now, TENURE_RELEASE_LIVE));
        tenure_arena* made = nullptr;
        wrong += tenure_arena_create(sim.device, "a", "policy=fronted_best_fit", &made) != TENURE_OK;
        now = made;
    }
    stop = true;
    for (std::thread& t : users) t.join();
    rival.join();
    CHECK(wrong == 0);
    CHECK(fits(tenure_arena_destroy(now, TENURE_RELEASE_LIVE)));
}

TEST_CASE("C: a child of fork has no handles", "[c]") {
    const opened sim;
    tenure_arena* const a = sim.arena("a");
    void* p = nullptr;
    REQUIRE(tenure_allocate(a, nullptr, 100, 0, &p) == TENURE_OK);
    const ::pid_t child = ::fork();
    if (child == 0) {
        bool right = tenure_free(a, nullptr, p, 100) == TENURE_INVALID_HANDLE;
        right = right && tenure_device_close(sim.device) == TENURE_INVALID_HANDLE;
        tenure_device* own = nullptr;
        right = right && tenure_device_open("sim", nullptr, &own) == TENURE_OK;
        right = right && tenure_arena_create(own, "a", nullptr, nullptr) == TENURE_INVALID_ARGUMENT;
        right = right && tenure_device_close(own) == TENURE_OK;
        ::_exit(right ? 0 : 1);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(statistics(a).blocks == 1);
    CHECK(tenure_free(a, nullptr, p, 100) == TENURE_OK);
    destroy(a);
}

TEST_CASE("C: threads of several arenas, each within its limit", "[c]") {
    const opened sim("capacity=512MiB");
    tenure_arena* const gpu = sim.group("gpu", "max=64MiB");
    std::vector<tenure_arena*> arenas;
    for (const char* path : {"gpu/0", "gpu/1", "gpu/2"})
        arenas.push_back(sim.arena(path, "max=24MiB policy=fronted_best_fit"));
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 6; ++t)
        threads.emplace_back([&, t] {
            tenure_arena* const a = arenas[t % arenas.size()];
            std::vector<std::pair<void*, std::size_t>> live;
            unsigned state = t * 977 + 1;
            for (int i = 0; i < 1500; ++i) {
                state = state * 1664525 + 1013904223;
                const std::size_t n = 1 + (state >> 8) % (2 * MiB);
                void* p = nullptr;
                const tenure_code c = tenure_allocate(a, nullptr, n, 0, &p);
                if (c == TENURE_OK) {
                    *static_cast<unsigned*>(p) = state;
                    live.emplace_back(p, n);
                } else if (c != TENURE_OVER_LIMIT && c != TENURE_OUT_OF_MEMORY) {
                    ++wrong;
                }
                if (!live.empty() && (c != TENURE_OK || live.size() > 6)) {
                    wrong += tenure_free(a, nullptr, live.back().first, live.back().second) != TENURE_OK;
                    live.pop_back();
                }
                tenure_statistics s{};
                s.size = sizeof s;
                wrong += tenure_get_statistics(gpu, &s) != TENURE_OK || s.charged > 64 * MiB;
            }
            for (const auto& [p, n] : live) wrong += tenure_free(a, nullptr, p, n) != TENURE_OK;
        });
    for (std::thread& t : threads) t.join();
    CHECK(wrong == 0);
    for (tenure_arena* a : arenas) {
        CHECK(statistics(a).blocks == 0);
        CHECK(statistics(a).charged_peak <= 24 * MiB);
        destroy(a);
    }
    CHECK(statistics(gpu).charged == 0);
    destroy(gpu);
}
