// What a thread knows about its last failure: src/c/failure.hpp.

#include "support/catch.hpp"

#include "../../src/c/failure.hpp"

#include <string>

namespace {

using namespace tenure;
using c::last_failure;

tenure_code refused() {
    allocation_failure f{};
    f.cause = failure_cause::arena_limit;
    f.requested = 7;
    return c::fail(f);
}

} // namespace

TEST_CASE("C: a refusal that is no allocation's does not show an older one's numbers", "[c][failure]") {
    CHECK(refused() == TENURE_OVER_LIMIT);
    REQUIRE(last_failure::of_this_thread().allocation);
    CHECK(c::fail(status::failed, "doing something") == TENURE_DRIVER); // its code asks for no numbers
    CHECK(last_failure::of_this_thread().allocation);
    CHECK(c::fail(status::out_of_memory, "creating a stream") == TENURE_OUT_OF_MEMORY);
    CHECK_FALSE(last_failure::of_this_thread().allocation);

    CHECK(refused() == TENURE_OVER_LIMIT);
    CHECK(c::guarded([]() -> tenure_code { throw driver_error(status::out_of_memory, "opening"); }) ==
          TENURE_OUT_OF_MEMORY);
    CHECK_FALSE(last_failure::of_this_thread().allocation);
}

TEST_CASE("C: what runs in the middle of anything tells no failure of its own", "[c][failure]") {
    CHECK(c::fail(TENURE_BUSY, "the first") == TENURE_BUSY);
    {
        const c::untold outer;
        {
            const c::untold inner;
            CHECK(refused() == TENURE_OVER_LIMIT);
        }
        CHECK(c::fail(TENURE_INTERNAL, "the second") == TENURE_INTERNAL);
    }
    CHECK(std::string(last_failure::of_this_thread().text.data()) == "the first");
    CHECK(c::fail(TENURE_EXISTS, "the third") == TENURE_EXISTS);
    CHECK(std::string(last_failure::of_this_thread().text.data()) == "the third");
}
