#include "support/catch.hpp"

#include <tenure/device/cuda/descriptor.hpp>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

using tenure::cuda::descriptor;
using tenure::cuda::receive_descriptors;
using tenure::cuda::send_descriptors;

namespace {

bool is_open(int number) {
    return ::fcntl(number, F_GETFD) >= 0;
}

struct sockets {
    sockets() {
        int ends[2] = {-1, -1};
        REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        a = descriptor(ends[0]);
        b = descriptor(ends[1]);
    }
    descriptor a;
    descriptor b;
};

} // namespace

TEST_CASE("a descriptor is closed once, by its last owner", "[device][cuda][descriptor]") {
    int ends[2] = {-1, -1};
    REQUIRE(::pipe(ends) == 0);
    {
        descriptor read_end(ends[0]);
        descriptor other(std::move(read_end));
        CHECK_FALSE(read_end);
        CHECK(other.get() == ends[0]);
        CHECK(is_open(ends[0]));
        const descriptor write_end(ends[1]);
        const descriptor none;
        CHECK_FALSE(none);
    }
    CHECK_FALSE(is_open(ends[0]));
    CHECK_FALSE(is_open(ends[1]));
}

TEST_CASE("descriptors reach the other side in order, as copies", "[device][cuda][descriptor]") {
    const sockets s;
    constexpr std::size_t count = 300; // more than one message holds
    std::vector<descriptor> readers;
    std::vector<int> numbers;
    std::vector<descriptor> writers;
    for (std::size_t i = 0; i < count; ++i) {
        int ends[2] = {-1, -1};
        REQUIRE(::pipe(ends) == 0);
        readers.emplace_back(ends[0]);
        writers.emplace_back(ends[1]);
        numbers.push_back(ends[0]);
    }
    REQUIRE(send_descriptors(s.a.get(), numbers));
    readers.clear(); // the copies live on
    const std::vector<descriptor> received = receive_descriptors(s.b.get(), count);
    REQUIRE(received.size() == count);
    for (const std::size_t i : {std::size_t{0}, std::size_t{249}, std::size_t{250}, count - 1}) {
        const char sent = static_cast<char>(i);
        REQUIRE(::write(writers[i].get(), &sent, 1) == 1);
        char got = 0;
        REQUIRE(::read(received[i].get(), &got, 1) == 1);
        CHECK(got == sent);
    }
}

TEST_CASE("a side that hangs up is no endless wait", "[device][cuda][descriptor]") {
    sockets s;
    const sockets others;
    const int number = others.a.get();
    REQUIRE(send_descriptors(s.a.get(), std::span(&number, 1)));
    { const descriptor hung_up(std::move(s.a)); }
    CHECK(receive_descriptors(s.b.get(), 5).size() == 1);
    CHECK_FALSE(send_descriptors(s.b.get(), std::span(&number, 1)));
}
