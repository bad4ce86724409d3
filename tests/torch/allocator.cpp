#include "sim_world.hpp"
#include "support/catch.hpp"

using namespace tenure;
using namespace tenure::test;

TEST_CASE("a tensor's memory has the standard deleter, and its context is the pointer", "[torch][deleter]") {
    torch_world w;
    c10::DataPtr d = w.a->allocate(1000);
    CHECK(d.get() != nullptr);
    CHECK(d.get_context() == d.get());
    CHECK(d.get_deleter() == w.a->raw_deleter());
    CHECK(d.device() == c10::Device(c10::kCUDA, 0));
    CHECK(now(w.stats().allocated_bytes) == 1024);
    CHECK(now(w.stats().requested_bytes) == 1000);
    d.clear();
    CHECK(now(w.stats().allocated_bytes) == 0);
    CHECK(w.a->validate());
}
