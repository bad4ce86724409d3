/// \file
/// Bandwidth over memory that is mapped piece by piece, against one `cudaMalloc`: kernels and the driver's copies.
///
///     cudaMalloc      |---------------------- 1 GiB ----------------------|
///     H-MiB handles   | h7 | h2 | h9 | h4 | ...                                shuffled, behind one range of addresses
///     remap_pool      a block that the pool shows over handles that were free here and there
///
/// Each figure is the median of many rounds in which all memories take turns, so that a clock that drifts hits all of them.
/// Prints a table in Markdown; a ratio below 0.97 is bold. Times decide nothing: the program fails (1) only where a copy
/// has lost something, or the pool has bought memory instead of showing what it had. 77: no GPU, or no virtual memory.
///
///     bandwidth            some 20 s
///     bandwidth quick      few rounds, 256 MiB: to see that it works

#include <tenure/core/bits.hpp>
#include <tenure/device/cuda_device.hpp>
#include <tenure/policy/remap_pool.hpp>

#include "cuda/check.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace tenure::literals;
using tenure::status;
using gpu = tenure::cuda::device;

void must(cudaError_t e) {
    if (e == cudaSuccess) return;
    std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(e));
    std::exit(1);
}

// ---- kernels: 16 bytes a thread and step ----

__global__ void write_all(uint4* to, std::size_t n, unsigned seed) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < n;
         i += std::size_t{gridDim.x} * blockDim.x)
        to[i] = make_uint4(static_cast<unsigned>(i), seed, static_cast<unsigned>(i >> 32), ~seed);
}
__global__ void copy_all(const uint4* from, uint4* to, std::size_t n) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < n;
         i += std::size_t{gridDim.x} * blockDim.x)
        to[i] = from[i];
}
/// What is read is summed up, so that reading cannot be left out.
__global__ void read_all(const uint4* from, std::size_t n, unsigned* sum) {
    unsigned mine = 0;
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < n;
         i += std::size_t{gridDim.x} * blockDim.x) {
        const uint4 v = from[i];
        mine += v.x ^ v.y ^ v.z ^ v.w;
    }
    if (mine == 0x9e3779b9u) atomicAdd(sum, mine);
}
/// One 16-byte word in `n`, somewhere, a thread and step: what many pages cost the translation of addresses.
__global__ void read_anywhere(const uint4* from, std::size_t n, std::size_t reads, unsigned* sum) {
    unsigned mine = 0;
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < reads;
         i += std::size_t{gridDim.x} * blockDim.x) {
        unsigned long long x = i * 0x9e3779b97f4a7c15ull;
        x ^= x >> 29;
        mine += from[x % n].x;
    }
    if (mine == 0x9e3779b9u) atomicAdd(sum, mine);
}
/// Counts the words that `write_all` with this seed has not written.
__global__ void check_all(const uint4* p, std::size_t n, unsigned seed, unsigned* wrong) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < n;
         i += std::size_t{gridDim.x} * blockDim.x) {
        const uint4 v = p[i];
        if (v.x != static_cast<unsigned>(i) || v.y != seed || v.z != static_cast<unsigned>(i >> 32) ||
            v.w != ~seed)
            atomicAdd(wrong, 1u);
    }
}

// ---- memories ----

/// Two buffers of the same making.
struct memory {
    std::string name;
    char* a = nullptr;
    char* b = nullptr;
};

/// A range over handles of `each` bytes in shuffled order. Lives as long as the process.
char* mapped(gpu& d, std::size_t bytes, std::size_t each, std::mt19937& rng) {
    std::vector<tenure::memory_handle> handles;
    for (std::size_t got = 0; got < bytes; got += each) {
        const auto h = d.create_memory(each);
        TENURE_REQUIRE(h.has_value());
        handles.push_back(*h);
    }
    std::shuffle(handles.begin(), handles.end(), rng);
    const auto range = d.reserve_address(bytes, 0);
    TENURE_REQUIRE(range.has_value());
    char* at = static_cast<char*>(*range);
    for (const tenure::memory_handle h : handles) {
        TENURE_REQUIRE(d.map(at, h) == status::ok && d.set_access(at, each) == status::ok);
        at += each;
    }
    return static_cast<char*>(*range);
}

/// Two blocks that the pool can only show: it holds twice their bytes, and every other piece of them is in use.
void show(tenure::remap_pool<gpu>& pool, std::size_t bytes, memory& m) {
    constexpr std::size_t piece = 32_MiB;
    std::vector<void*> pieces;
    for (std::size_t got = 0; got < 4 * bytes; got += piece)
        pieces.push_back(pool.allocate(tenure::default_stream, piece));
    for (std::size_t i = 0; i < pieces.size(); i += 2)
        pool.deallocate(tenure::default_stream, pieces[i], piece);
    const std::size_t before = pool.usage().reserved.current;
    m.a = static_cast<char*>(pool.allocate(tenure::default_stream, bytes));
    m.b = static_cast<char*>(pool.allocate(tenure::default_stream, bytes));
    TENURE_CHECK(pool.usage().reserved.current == before);
}

// ---- measuring ----

struct bench {
    std::size_t bytes = 0;
    std::size_t host_bytes = 0;
    int rounds = 0;
    cudaStream_t stream = nullptr;
    cudaEvent_t begin = nullptr, end = nullptr;
    void* host = nullptr;
    unsigned* sum = nullptr;
    unsigned grid = 0;

    [[nodiscard]] std::size_t words() const { return bytes / sizeof(uint4); }

    template <class Work>
    float milliseconds(Work work) {
        must(cudaEventRecord(begin, stream));
        work();
        must(cudaEventRecord(end, stream));
        must(cudaEventSynchronize(end));
        must(cudaGetLastError());
        float ms = 0;
        must(cudaEventElapsedTime(&ms, begin, end));
        return ms;
    }

    /// Prints a row: GB/s over the first memory, and the ratio to it for each other one. `moved`: bytes a round.
    template <class Work>
    void row(const char* name, const std::vector<memory>& memories, std::size_t moved, Work work) {
        std::vector<std::vector<float>> times(memories.size());
        for (int r = 0; r <= rounds; ++r)
            for (std::size_t i = 0; i < memories.size(); ++i) {
                const float ms = milliseconds([&] { work(memories[i]); });
                if (r != 0) times[i].push_back(ms); // the first warms up
            }
        std::printf("| %s |", name);
        double first = 0;
        for (std::vector<float>& t : times) {
            std::nth_element(t.begin(), t.begin() + static_cast<std::ptrdiff_t>(t.size() / 2), t.end());
            const double rate = static_cast<double>(moved) / t[t.size() / 2] / 1e6;
            if (first == 0)
                std::printf(" %.0f |", first = rate);
            else
                std::printf(rate / first < 0.97 ? " **%.3f** |" : " %.3f |", rate / first);
        }
        std::printf("\n");
        std::fflush(stdout);
    }

    unsigned wrong_words(const char* p, unsigned seed, std::size_t n) {
        unsigned wrong = 0;
        must(cudaMemsetAsync(sum, 0, sizeof *sum, stream));
        check_all<<<grid, 256, 0, stream>>>(reinterpret_cast<const uint4*>(p), n, seed, sum);
        must(cudaMemcpyAsync(&wrong, sum, sizeof wrong, cudaMemcpyDeviceToHost, stream));
        must(cudaStreamSynchronize(stream));
        return wrong;
    }
};

uint4* as_words(char* p) {
    return reinterpret_cast<uint4*>(p);
}

void measure(bench& b, const std::vector<memory>& memories) {
    std::printf("| GB/s, and ratios to it |");
    for (const memory& m : memories) std::printf(" %s |", m.name.c_str());
    std::printf("\n|---|");
    for (std::size_t i = 0; i < memories.size(); ++i) std::printf("---|");
    std::printf("\n");

    const std::size_t n = b.words();
    b.row("kernel writes", memories, b.bytes,
          [&](const memory& m) { write_all<<<b.grid, 256, 0, b.stream>>>(as_words(m.a), n, 1); });
    b.row("kernel reads", memories, b.bytes,
          [&](const memory& m) { read_all<<<b.grid, 256, 0, b.stream>>>(as_words(m.a), n, b.sum); });
    b.row("kernel reads anywhere", memories, b.bytes / 4, [&](const memory& m) {
        read_anywhere<<<b.grid, 256, 0, b.stream>>>(as_words(m.a), n, n / 4, b.sum);
    });
    b.row("kernel copies", memories, 2 * b.bytes,
          [&](const memory& m) { copy_all<<<b.grid, 256, 0, b.stream>>>(as_words(m.a), as_words(m.b), n); });
    b.row("cudaMemsetAsync", memories, b.bytes,
          [&](const memory& m) { must(cudaMemsetAsync(m.b, 0, b.bytes, b.stream)); });
    b.row("cudaMemcpyAsync device to device", memories, 2 * b.bytes, [&](const memory& m) {
        must(cudaMemcpyAsync(m.b, m.a, b.bytes, cudaMemcpyDeviceToDevice, b.stream));
    });
    b.row("the same, 8 MiB at a time", memories, 2 * b.bytes, [&](const memory& m) {
        for (std::size_t at = 0; at < b.bytes; at += 8_MiB)
            must(cudaMemcpyAsync(m.b + at, m.a + at, 8_MiB, cudaMemcpyDeviceToDevice, b.stream));
    });
    for (const memory& m : memories) TENURE_CHECK(b.wrong_words(m.b, 1, n) == 0);
    b.row("cudaMemcpyAsync device to host", memories, b.host_bytes, [&](const memory& m) {
        must(cudaMemcpyAsync(b.host, m.a, b.host_bytes, cudaMemcpyDeviceToHost, b.stream));
    });
    b.row("cudaMemcpyAsync host to device", memories, b.host_bytes, [&](const memory& m) {
        must(cudaMemcpyAsync(m.b, b.host, b.host_bytes, cudaMemcpyHostToDevice, b.stream));
    });
    for (const memory& m : memories) TENURE_CHECK(b.wrong_words(m.b, 1, b.host_bytes / sizeof(uint4)) == 0);
}

} // namespace

int main(int argc, char** argv) {
    const bool quick = argc > 1 && std::string(argv[1]) == "quick";
    std::unique_ptr<gpu> device;
    try {
        device = std::make_unique<gpu>();
    } catch (const tenure::driver_error& e) {
        tenure::test::skip(e.what());
    }
    gpu& d = *device;
    if (!d.supports_vmm()) tenure::test::skip("this GPU or driver has no virtual memory");

    bench b;
    b.bytes = quick ? 256_MiB : 1_GiB;
    b.host_bytes = 256_MiB;
    b.rounds = quick ? 3 : 41;
    int multiprocessors = 0;
    must(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    b.grid = static_cast<unsigned>(multiprocessors) * 8;
    must(cudaStreamCreateWithFlags(&b.stream, cudaStreamNonBlocking));
    must(cudaEventCreate(&b.begin));
    must(cudaEventCreate(&b.end));
    must(cudaHostAlloc(&b.host, b.host_bytes, cudaHostAllocDefault));
    must(cudaMalloc(&b.sum, sizeof *b.sum));

    std::mt19937 rng(1);
    std::vector<memory> memories;
    memory plain{"cudaMalloc", nullptr, nullptr};
    must(cudaMalloc(&plain.a, b.bytes));
    must(cudaMalloc(&plain.b, b.bytes));
    memories.push_back(plain);
    for (const std::size_t mib : {2, 8, 16, 32, 64, 128})
        memories.push_back({std::to_string(mib) + " MiB", mapped(d, b.bytes, mib * 1_MiB, rng),
                            mapped(d, b.bytes, mib * 1_MiB, rng)});
    tenure::remap_pool<gpu> pool(d, {.least_handle_bytes = 32_MiB, .most_handle_bytes = 32_MiB});
    memory shown{"`remap_pool`", nullptr, nullptr};
    show(pool, b.bytes, shown);
    memories.push_back(shown);

    measure(b, memories);
    const int rc = tenure::test::finish("bandwidth");
    std::fflush(nullptr);
    std::_Exit(rc); // the pool is full of blocks, and that is no misuse here
}
