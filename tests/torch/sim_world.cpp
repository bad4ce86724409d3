// The allocator on the simulated device, compiled once for all tests.

#include "sim_world.hpp"

template class tenure::torch::heap<tenure::sim::device>;
template class tenure::torch::allocator<tenure::test::sim_world>;
