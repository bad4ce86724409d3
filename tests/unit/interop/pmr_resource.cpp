/// `pmr_resource` is a std::pmr::memory_resource over a resource.

#include <tenure/interop/pmr_resource.hpp>

#include "support/catch.hpp"
#include "support/recording_resource.hpp"

#include <cstddef>
#include <cstdlib>
#include <map>
#include <memory_resource>
#include <new>
#include <string>
#include <vector>

namespace {

using tenure::pmr_resource;
using tenure::test::fake_pointer;
using tenure::test::recorded_call;
using tenure::test::recording_resource;

/// Host memory that can be written, and a count of what is out.
class host_memory : public recording_resource {
  public:
    void* allocate_sync(std::size_t n, std::size_t a) {
        void* const p = std::aligned_alloc(a, (n + a - 1) / a * a);
        sizes_[p] = n;
        return p;
    }
    void deallocate_sync(void* p, std::size_t n, std::size_t) noexcept {
        const auto at = sizes_.find(p);
        if (at == sizes_.end() || at->second != n) {
            ++wrong;
            return;
        }
        sizes_.erase(at);
        std::free(p);
    }
    [[nodiscard]] std::size_t live() const { return sizes_.size(); }
    int wrong = 0;

  private:
    std::map<void*, std::size_t> sizes_;
};

static_assert(tenure::resource<host_memory>);

} // namespace

TEST_CASE("a pmr resource allocates and frees synchronously", "[interop][pmr_resource]") {
    recording_resource r;
    pmr_resource m{tenure::resource_ref(r)};
    CHECK(m.allocate(100, 64) == fake_pointer(0x3000));
    CHECK(r.last == recorded_call{"allocate_sync", nullptr, nullptr, 100, 64});
    m.deallocate(fake_pointer(0x20), 100, 64);
    CHECK(r.last == recorded_call{"deallocate_sync", nullptr, fake_pointer(0x20), 100, 64});
    (void)m.allocate(0, 8); // no bytes are a block, too
    CHECK(r.last == recorded_call{"allocate_sync", nullptr, nullptr, 1, 8});
    m.deallocate(fake_pointer(0x20), 0, 8);
    CHECK(r.last == recorded_call{"deallocate_sync", nullptr, fake_pointer(0x20), 1, 8});
    r.fail = true;
    CHECK_THROWS_AS(m.allocate(100, 64), std::bad_alloc);
}

TEST_CASE("pmr resources are equal where they mean the same resource", "[interop][pmr_resource]") {
    recording_resource r;
    recording_resource other;
    pmr_resource a{tenure::resource_ref(r)};
    pmr_resource b{tenure::resource_ref(r)};
    pmr_resource c{tenure::resource_ref(other)};
    CHECK(a == b);
    CHECK_FALSE(a == c);
    CHECK_FALSE(a == *std::pmr::new_delete_resource());
}

TEST_CASE("standard containers live in a pmr resource", "[interop][pmr_resource]") {
    host_memory r;
    {
        pmr_resource m{tenure::resource_ref(r)};
        std::pmr::vector<int> v(&m);
        for (int i = 0; i < 1000; ++i) v.push_back(i);
        std::pmr::map<int, std::pmr::string> names(&m);
        for (int i = 0; i < 50; ++i)
            names[i] = "longer than a short string can be, number " + std::to_string(i);
        CHECK(v[999] == 999);
        CHECK(names[49].back() == '9');
        CHECK(r.live() == 1 + 2 * 50);
    }
    CHECK(r.live() == 0);
    CHECK(r.wrong == 0);
}
