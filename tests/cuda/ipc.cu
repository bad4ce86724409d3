/// \file
/// Two processes read each other's memory: a block of `device.allocate`, a range of virtual memory of several handles, a
/// block of a driver pool.
///
///     ipc             the owner; it starts the user
///     ipc FD          the user: a socket to the owner, inherited
///
/// The user checks what the owner has written, writes its own pattern, and the owner checks that.

#include <tenure/device/cuda/ipc.hpp>
#include <tenure/policy/best_fit_pool.hpp>

#include "cuda/check.hpp"

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

namespace {

using namespace tenure::literals;
using tenure::memory_handle;
using tenure::status;
using gpu = tenure::cuda::device;
namespace cu = tenure::cuda;

constexpr std::size_t bytes = 1'000'000;
constexpr std::size_t pieces = 3;

bool holds(const void* p, std::size_t n, unsigned char pattern) {
    std::vector<unsigned char> copy(n);
    if (cudaMemcpy(copy.data(), p, n, cudaMemcpyDeviceToHost) != cudaSuccess) return false;
    for (const unsigned char c : copy)
        if (c != pattern) return false;
    return true;
}

void write(void* p, std::size_t n, int pattern) {
    TENURE_CHECK(cudaMemset(p, pattern, n) == cudaSuccess);
    TENURE_CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

void put(int socket, const void* data, std::size_t n) {
    TENURE_REQUIRE(::write(socket, data, n) == static_cast<ssize_t>(n));
}
void get(int socket, void* data, std::size_t n) {
    char* at = static_cast<char*>(data);
    while (n > 0) {
        const ssize_t got = ::read(socket, at, n);
        TENURE_REQUIRE(got > 0);
        at += got;
        n -= static_cast<std::size_t>(got);
    }
}
void say(int socket) {
    put(socket, "k", 1);
}
void hear(int socket) {
    char c = 0;
    get(socket, &c, 1);
}

char* map_side_by_side(gpu& d, const std::vector<memory_handle>& handles) {
    char* const window = static_cast<char*>(*d.reserve_address(handles.size() * 2_MiB, 0));
    for (std::size_t i = 0; i < handles.size(); ++i)
        TENURE_REQUIRE(d.map(window + i * 2_MiB, handles[i]) == status::ok);
    TENURE_REQUIRE(d.set_access(window, handles.size() * 2_MiB) == status::ok);
    return window;
}

void unmap(gpu& d, char* window, const std::vector<memory_handle>& handles) {
    TENURE_CHECK(d.unmap(window, handles.size() * 2_MiB) == status::ok);
    for (const memory_handle h : handles) TENURE_CHECK(d.release_memory(h) == status::ok);
    TENURE_CHECK(d.free_address(window, handles.size() * 2_MiB) == status::ok);
}

int user(int socket) {
    gpu d;
    {
        cu::exported_block from;
        get(socket, &from, sizeof from);
        TENURE_CHECK(from.bytes == bytes && from.offset != 0);
        auto block = cu::imported_block::open(d, from);
        TENURE_REQUIRE(block.has_value());
        TENURE_CHECK(holds(block->get(), bytes, 0x11));
        write(block->get(), bytes, 0x12);
    }
    say(socket);
    if (d.supports_vmm()) {
        std::vector<memory_handle> handles;
        for (const cu::descriptor& fd : cu::receive_descriptors(socket, pieces)) {
            const auto h = cu::import_memory(d, fd, 2_MiB);
            TENURE_REQUIRE(h.has_value());
            handles.push_back(*h);
        }
        TENURE_REQUIRE(handles.size() == pieces);
        char* const window = map_side_by_side(d, handles);
        for (std::size_t i = 0; i < pieces; ++i)
            TENURE_CHECK(holds(window + i * 2_MiB, 2_MiB, static_cast<unsigned char>(0x20 + i)));
        write(window, pieces * 2_MiB, 0x2f);
        unmap(d, window, handles);
        say(socket);
    }
    if (d.supports_pools()) {
        const auto fd = cu::receive_descriptors(socket, 1);
        TENURE_REQUIRE(fd.size() == 1);
        const auto pool = cu::import_pool(d, fd[0]);
        TENURE_REQUIRE(pool.has_value());
        cudaMemPoolPtrExportData from{};
        get(socket, &from, sizeof from);
        const auto p = cu::import_pool_block(*pool, from);
        TENURE_REQUIRE(p.has_value());
        TENURE_CHECK(!d.allocate_from(*pool, 1_MiB, tenure::default_stream).has_value());
        TENURE_CHECK(holds(*p, bytes, 0x31));
        write(*p, bytes, 0x32);
        TENURE_CHECK(d.deallocate_to(*pool, *p, tenure::default_stream) == status::ok);
        TENURE_CHECK(d.synchronize(tenure::default_stream) == status::ok);
        TENURE_CHECK(d.destroy_pool(*pool) == status::ok);
        say(socket);
    }
    return tenure::test::failed_checks == 0 ? 0 : 1;
}

void owner(gpu& d, int socket) {
    {
        tenure::best_fit_pool<gpu> pool(d);
        void* const neighbour = pool.allocate(tenure::default_stream, bytes);
        void* const p = pool.allocate(tenure::default_stream, bytes);
        write(neighbour, bytes, 0x10);
        write(p, bytes, 0x11);
        const auto out = cu::export_block(d, p, bytes);
        TENURE_REQUIRE(out.has_value());
        put(socket, &*out, sizeof *out);
        hear(socket);
        TENURE_CHECK(holds(p, bytes, 0x12));
        TENURE_CHECK(holds(neighbour, bytes, 0x10));
        pool.deallocate(tenure::default_stream, p, bytes);
        pool.deallocate(tenure::default_stream, neighbour, bytes);
    }
    if (d.supports_vmm()) {
        std::vector<memory_handle> handles;
        for (std::size_t i = 0; i < pieces; ++i) handles.push_back(*d.create_memory(2_MiB));
        char* const window = map_side_by_side(d, handles);
        std::vector<cu::descriptor> fds;
        std::vector<int> numbers;
        for (std::size_t i = 0; i < pieces; ++i) {
            write(window + i * 2_MiB, 2_MiB, static_cast<int>(0x20 + i));
            auto fd = cu::export_memory(d, handles[i]);
            TENURE_REQUIRE(fd.has_value());
            fds.push_back(std::move(*fd));
            numbers.push_back(fds.back().get());
        }
        TENURE_REQUIRE(cu::send_descriptors(socket, numbers));
        hear(socket);
        TENURE_CHECK(holds(window, pieces * 2_MiB, 0x2f));
        // Memory of the other kind says so.
        const auto refused = cu::export_block(d, window, bytes);
        TENURE_CHECK(!refused.has_value() && refused.error() == status::not_supported);
        TENURE_CHECK(cudaPeekAtLastError() == cudaSuccess);
        unmap(d, window, handles);
    }
    if (d.supports_pools()) {
        const auto pool = d.create_pool({});
        TENURE_REQUIRE(pool.has_value());
        const auto p = d.allocate_from(*pool, bytes, tenure::default_stream);
        TENURE_REQUIRE(p.has_value());
        write(*p, bytes, 0x31);
        const auto fd = cu::export_pool(d, *pool);
        TENURE_REQUIRE(fd.has_value());
        const int number = fd->get();
        TENURE_REQUIRE(cu::send_descriptors(socket, {&number, 1}));
        const auto out = cu::export_pool_block(*p);
        TENURE_REQUIRE(out.has_value());
        put(socket, &*out, sizeof *out);
        hear(socket);
        TENURE_CHECK(holds(*p, bytes, 0x32));
        TENURE_CHECK(d.deallocate_to(*pool, *p, tenure::default_stream) == status::ok);
        TENURE_CHECK(d.synchronize(tenure::default_stream) == status::ok);
        TENURE_CHECK(d.destroy_pool(*pool) == status::ok);
    }
}

void without_opting_in_it_is_refused(int ordinal) {
    gpu plain(ordinal);
    if (plain.supports_vmm()) {
        const auto h = plain.create_memory(2_MiB);
        TENURE_REQUIRE(h.has_value());
        TENURE_CHECK(cu::export_memory(plain, *h).error() == status::not_supported);
        TENURE_CHECK(plain.release_memory(*h) == status::ok);
    }
    const auto pool = plain.create_pool({});
    if (!pool) return;
    TENURE_CHECK(cu::export_pool(plain, *pool).error() == status::not_supported);
    TENURE_CHECK(plain.destroy_pool(*pool) == status::ok);
}

} // namespace

int main(int argc, char** argv) {
    if (argc > 1) return user(std::atoi(argv[1]));
    std::unique_ptr<gpu> d;
    int ends[2] = {-1, -1};
    TENURE_REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    const pid_t child = fork(); // before CUDA starts; it begins anew
    if (child == 0) {
        (void)close(ends[0]);
        char wait = 0;
        if (::recv(ends[1], &wait, 1, MSG_PEEK) != 1) _exit(0); // the owner has no GPU
        (void)::read(ends[1], &wait, 1);
        const std::string number = std::to_string(ends[1]);
        execl("/proc/self/exe", argv[0], number.c_str(), static_cast<char*>(nullptr));
        _exit(1);
    }
    (void)close(ends[1]);
    try {
        d = std::make_unique<gpu>(0, cu::device_options{.shareable = true});
    } catch (const tenure::driver_error& e) {
        if (e.code() != status::no_device && e.code() != status::not_supported) throw;
        tenure::test::skip(e.what());
    }
    say(ends[0]);
    owner(*d, ends[0]);
    int rc = 0;
    TENURE_CHECK(waitpid(child, &rc, 0) == child);
    TENURE_CHECK(WIFEXITED(rc) && WEXITSTATUS(rc) == 0);
    without_opting_in_it_is_refused(0);
    return tenure::test::finish("ipc");
}
