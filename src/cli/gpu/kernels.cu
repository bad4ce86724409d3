#include "kernels.hpp"

#include <algorithm>
#include <limits>

namespace tenure::cli::gpu {

namespace {

constexpr unsigned threads = 256;
constexpr unsigned blocks_per_multiprocessor = 4; // half of 2048 threads
constexpr unsigned batch = 4;                     // words that each thread has under way

__device__ unsigned long long nanoseconds_now() {
    unsigned long long ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

__global__ void spin_kernel(unsigned long long ns) {
    const unsigned long long begin = nanoseconds_now();
    while (nanoseconds_now() - begin < ns) __nanosleep(100);
}

__global__ void hold_kernel(const volatile std::uint32_t* word, unsigned long long ns) {
    const unsigned long long begin = nanoseconds_now();
    while (*word == 0 && nanoseconds_now() - begin < ns) __nanosleep(200);
}

__device__ uint4 vector_of(pattern_key key, std::size_t i) {
    const pattern_word w = word_of(key, i);
    return make_uint4(w.a, w.b, w.c, w.d);
}

__global__ void __launch_bounds__(threads)
    fill_kernel(uint4* p, std::size_t words, std::size_t n, pattern_key key) {
    const std::size_t first = std::size_t{blockIdx.x} * threads + threadIdx.x;
    const std::size_t stride = std::size_t{gridDim.x} * threads;
#pragma unroll 4
    for (std::size_t i = first; i < words; i += stride) p[i] = vector_of(key, i);
    const std::size_t rest = words * pattern_word_bytes + first;
    if (rest < n) reinterpret_cast<unsigned char*>(p)[rest] = byte_of(key, rest);
}

__global__ void fill_bytes_kernel(unsigned char* p, std::size_t n, pattern_key key) {
    const std::size_t stride = std::size_t{gridDim.x} * threads;
    for (std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x; i < n; i += stride)
        p[i] = byte_of(key, i);
}

/// What one thread found wrong.
struct wrong_words {
    unsigned long long count = 0;
    unsigned long long first = 0; ///< byte offset
    pattern_word found;           ///< there

    __device__ void add(std::size_t offset, const pattern_word& w) {
        if (count++ != 0) return;
        first = offset;
        found = w;
    }
};

/// Thread-safe between all kernels: a check claims a place by its number.
__device__ void report(const wrong_words& wrong, unsigned long long number, findings* out) {
    if (wrong.count == 0) return;
    for (finding& f : out->list) {
        const unsigned long long owner = atomicCAS(&f.check, 0ull, number);
        if (owner != 0 && owner != number) continue;
        atomicMin(&f.first_bad, wrong.first);
        atomicAdd(&f.bad_words, wrong.count);
        if (owner == 0) {
            f.found_at = wrong.first;
            f.found = wrong.found;
        }
        return;
    }
    atomicAdd(&out->lost, wrong.count);
}

__global__ void __launch_bounds__(threads)
    check_kernel(const uint4* p, std::size_t words, std::size_t n, pattern_key key, unsigned long long number,
                 findings* out) {
    const std::size_t first = std::size_t{blockIdx.x} * threads + threadIdx.x;
    const std::size_t stride = std::size_t{gridDim.x} * threads;
    wrong_words wrong;
    const auto compare = [&](std::size_t i, const uint4& found) {
        const uint4 right = vector_of(key, i);
        if (found.x != right.x || found.y != right.y || found.z != right.z || found.w != right.w)
            wrong.add(i * pattern_word_bytes, {found.x, found.y, found.z, found.w});
    };
    std::size_t i = first;
    for (; i + (batch - 1) * stride < words; i += batch * stride) {
        uint4 found[batch];
#pragma unroll
        for (unsigned k = 0; k < batch; ++k) found[k] = __ldcg(p + i + k * stride);
#pragma unroll
        for (unsigned k = 0; k < batch; ++k) compare(i + k * stride, found[k]);
    }
    for (; i < words; i += stride) compare(i, __ldcg(p + i));
    const std::size_t rest = words * pattern_word_bytes + first;
    if (rest < n) {
        const unsigned char found = __ldcg(reinterpret_cast<const unsigned char*>(p) + rest);
        if (found != byte_of(key, rest)) wrong.add(rest, {found, 0, 0, 0});
    }
    report(wrong, number, out);
}

__global__ void check_bytes_kernel(const unsigned char* p, std::size_t n, pattern_key key,
                                   unsigned long long number, findings* out) {
    const std::size_t stride = std::size_t{gridDim.x} * threads;
    wrong_words wrong;
    for (std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x; i < n; i += stride) {
        const unsigned char found = __ldcg(p + i);
        if (found != byte_of(key, i)) wrong.add(i, {found, 0, 0, 0});
    }
    report(wrong, number, out);
}

/// Returns: enough thread blocks for this many items, `each` a thread, at most what shares the GPU with others.
unsigned grid_for(std::size_t items, std::size_t each) {
    static const unsigned most = [] {
        int device = 0;
        int multiprocessors = 0;
        if (cudaGetDevice(&device) != cudaSuccess ||
            cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
            multiprocessors = 64;
        return static_cast<unsigned>(multiprocessors) * blocks_per_multiprocessor;
    }();
    const std::size_t blocks = (items + each * threads - 1) / (each * threads);
    return static_cast<unsigned>(std::min<std::size_t>(std::max<std::size_t>(blocks, 1), most));
}

bool vectors_fit(const void* p) {
    return reinterpret_cast<std::uintptr_t>(p) % pattern_word_bytes == 0;
}

/// Unlike `<<<>>>` it answers for this launch alone: an older error of the thread stays what it is.
template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), unsigned grid, unsigned block, cudaStream_t stream,
                   Arguments... arguments) {
    const auto start = [&](Parameters... values) {
        void* pointers[] = {const_cast<void*>(static_cast<const volatile void*>(&values))...};
        return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(grid), dim3(block), pointers, 0,
                                stream);
    };
    return start(static_cast<Parameters>(arguments)...);
}

unsigned long long nanoseconds(std::chrono::microseconds t) {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max() / 1000;
    return static_cast<unsigned long long>(std::clamp<std::int64_t>(t.count(), 0, most)) * 1000;
}

} // namespace

cudaError_t spin(cudaStream_t stream, std::chrono::microseconds length) {
    return launch(spin_kernel, 1, 1, stream, nanoseconds(length));
}

cudaError_t hold(cudaStream_t stream, const std::uint32_t* word, std::chrono::microseconds longest) {
    return launch(hold_kernel, 1, 1, stream, word, nanoseconds(longest));
}

cudaError_t fill(cudaStream_t stream, void* p, std::size_t n, pattern_key key) {
    if (n == 0) return cudaSuccess;
    const std::size_t words = n / pattern_word_bytes;
    if (vectors_fit(p))
        return launch(fill_kernel, grid_for(words, batch), threads, stream, static_cast<uint4*>(p), words, n,
                      key);
    return launch(fill_bytes_kernel, grid_for(n, 1), threads, stream, static_cast<unsigned char*>(p), n, key);
}

cudaError_t check(cudaStream_t stream, const void* p, std::size_t n, pattern_key key, std::uint64_t number,
                  findings* out) {
    if (n == 0) return cudaSuccess;
    const std::size_t words = n / pattern_word_bytes;
    if (vectors_fit(p))
        return launch(check_kernel, grid_for(words, batch), threads, stream, static_cast<const uint4*>(p),
                      words, n, key, number, out);
    return launch(check_bytes_kernel, grid_for(n, 1), threads, stream, static_cast<const unsigned char*>(p),
                  n, key, number, out);
}

cudaError_t prepare() {
    constexpr std::size_t bytes = 100;
    unsigned char* scratch = nullptr;
    findings* out = nullptr;
    std::uint32_t* word = nullptr;
    cudaStream_t stream = nullptr;
    cudaError_t first = cudaSuccess;
    const auto then = [&first](cudaError_t e) {
        if (first == cudaSuccess) first = e;
        return first == cudaSuccess;
    };
    if (then(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)) &&
        then(cudaMalloc(&scratch, bytes)) && then(cudaMalloc(&out, sizeof *out)) &&
        then(cudaMemset(out, 0, sizeof *out)) &&
        then(cudaHostAlloc(&word, sizeof *word, cudaHostAllocDefault)) && then(cudaDeviceSynchronize())) {
        *word = 1;
        const pattern_key key = key_of(0, 0);
        then(spin(stream, std::chrono::microseconds{0}));
        then(hold(stream, word, std::chrono::microseconds{0}));
        for (unsigned char* p : {scratch, scratch + 1}) {
            then(fill(stream, p, bytes - 1, key));
            then(check(stream, p, bytes - 1, key, 1, out));
        }
        then(cudaStreamSynchronize(stream));
    }
    if (stream != nullptr) then(cudaStreamDestroy(stream));
    if (scratch != nullptr) then(cudaFree(scratch));
    if (out != nullptr) then(cudaFree(out));
    if (word != nullptr) then(cudaFreeHost(word));
    return first;
}

} // namespace tenure::cli::gpu
