/// \file
/// The policies on a GPU.

#include "support/cuda_world.hpp"
#include "support/subjects.hpp"

namespace bench {

template <>
const std::vector<subject<tenure::cuda::device>>& subjects() {
    static const std::vector<subject<tenure::cuda::device>> all = make_subjects<tenure::cuda::device>();
    return all;
}

} // namespace bench
