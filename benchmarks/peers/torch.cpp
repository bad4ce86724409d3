/// \file
/// PyTorch's native allocator, as C++ extensions call it. It is one for the process: one that is
/// destroyed empties its cache. The variable PYTORCH_CUDA_ALLOC_CONF configures it, as always.

#include "contender.hpp"

#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/headeronly/version.h>

#include <cstdlib>

namespace bench {

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

class torch_native final : public allocator {
  public:
    torch_native() {
        static const bool initialised = [] {
            caching::init(1);
            return true;
        }();
        static_cast<void>(initialised);
    }
    ~torch_native() override {
        try {
            caching::emptyCache();
        } catch (...) { // what it holds stays with it; the others have less
        }
    }
    void* allocate(cudaStream_t stream, std::size_t bytes) override {
        return caching::raw_alloc_with_stream(bytes, stream);
    }
    void deallocate(cudaStream_t, void* p, std::size_t) noexcept override {
        if (p != nullptr) caching::raw_delete(p);
    }
};

} // namespace

void add_torch(contender_list& all) {
    const char* configuration = std::getenv("PYTORCH_CUDA_ALLOC_CONF");
    std::string version = TORCH_VERSION;
    if (configuration != nullptr) version += std::string(" ") + configuration;
    all.push_back({"torch", version, contender::side::peer, [] { return std::make_unique<torch_native>(); }});
}

} // namespace bench
