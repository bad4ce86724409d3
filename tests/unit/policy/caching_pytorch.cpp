/// \file
/// `caching_pool` with PyTorch's preset against what PyTorch itself reserved on a GPU for the same programs.

#include <tenure/device/sim_device.hpp>
#include <tenure/policy/caching_pool.hpp>

#include "support/catch.hpp"

#include <zlib.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

using namespace tenure;

namespace {

const std::string traces_dir = TENURE_TRACES_DIR;

struct event {
    char op = 0;
    std::uint64_t id = 0;
    std::size_t bytes = 0;
    std::size_t stream = 0;
};

/// The trace format's three basic ops: `a`, `f` and `c`.
std::vector<event> read_trace(const std::string& name) {
    const std::string path = traces_dir + "/" + name + ".csv.gz";
    const gzFile file = gzopen(path.c_str(), "rb");
    if (file == nullptr) throw std::runtime_error("cannot open " + path);
    std::vector<event> events;
    char line[256];
    while (gzgets(file, line, sizeof line) != nullptr) {
        unsigned long long id = 0, bytes = 0, stream = 0;
        char op = 0;
        if (std::sscanf(line, "%*[^,],%c,%llu,%llu,%llu", &op, &id, &bytes, &stream) == 4)
            events.push_back({op, id, static_cast<std::size_t>(bytes), static_cast<std::size_t>(stream)});
    }
    gzclose(file);
    return events;
}

struct peer {
    std::size_t reserved = 0;
    std::size_t segments = 0;
};

std::map<std::string, peer> read_peers() {
    std::ifstream file(traces_dir + "/peers.csv");
    std::string line;
    std::map<std::string, std::size_t> column;
    std::map<std::string, peer> peers;
    while (std::getline(file, line)) {
        std::vector<std::string> cells;
        std::istringstream rest(line);
        for (std::string cell; std::getline(rest, cell, ',');) cells.push_back(cell);
        if (column.empty()) {
            for (std::size_t i = 0; i < cells.size(); ++i) column[cells[i]] = i;
            continue;
        }
        peers[cells.at(column.at("workload"))] = {std::stoull(cells.at(column.at("native_reserved"))),
                                                  std::stoull(cells.at(column.at("native_segments")))};
    }
    return peers;
}

/// Runs a trace through a pool, with the device's overlap check. What PyTorch freed at `f` and could reuse
/// only at `c` is here, as there, a block that another stream still uses: work on a stream of its own holds
/// it back until `c`.
class replay {
  public:
    void run(const std::vector<event>& events) {
        std::unordered_map<std::uint64_t, std::size_t> completed;
        for (std::size_t i = 0; i < events.size(); ++i)
            if (events[i].op == 'c') completed[events[i].id] = i;
        for (std::size_t i = 0; i < events.size(); ++i) {
            const event& e = events[i];
            if (e.op == 'a') allocate(e);
            if (e.op == 'f') {
                const auto c = completed.find(e.id);
                deallocate(e, c == completed.end() || c->second != i + 1);
            }
            if (e.op == 'c') complete(e.id);
        }
    }

    /// Frees all that is live, and ends the work that holds blocks back.
    void drain() {
        for (const auto& [id, b] : live_) {
            device.block_freed(b.p, stream(b.stream));
            pool.deallocate(stream(b.stream), b.p, b.bytes);
        }
        live_.clear();
        for (const auto& [id, held] : holders_) device.finish(held);
        holders_.clear();
    }

    sim::device device;
    caching_pool<sim::device> pool{device};

  private:
    struct block {
        void* p;
        std::size_t bytes;
        std::size_t stream;
    };

    stream_handle stream(std::size_t n) {
        while (streams_.size() <= n)
            streams_.push_back(streams_.empty() ? default_stream : device.create_stream());
        return streams_[n];
    }

    void allocate(const event& e) {
        void* const p = pool.allocate(stream(e.stream), e.bytes);
        device.block_allocated(p, e.bytes, stream(e.stream));
        live_[e.id] = {p, e.bytes, e.stream};
    }

    void deallocate(const event& e, bool used_elsewhere) {
        const block b = live_.at(e.id);
        live_.erase(e.id);
        if (used_elsewhere) {
            const stream_handle user = idle_.empty() ? device.create_stream() : idle_.back();
            if (!idle_.empty()) idle_.pop_back();
            device.hold(user);
            pool.record_use(b.p, user);
            device.block_used(b.p, user);
            holders_[e.id] = user;
        }
        device.block_freed(b.p, stream(b.stream));
        pool.deallocate(stream(b.stream), b.p, b.bytes);
    }

    void complete(std::uint64_t id) {
        const auto it = holders_.find(id);
        if (it == holders_.end()) return;
        device.finish(it->second);
        idle_.push_back(it->second);
        holders_.erase(it);
    }

    std::vector<stream_handle> streams_;
    std::vector<stream_handle> idle_;
    std::unordered_map<std::uint64_t, block> live_;
    std::unordered_map<std::uint64_t, stream_handle> holders_;
};

} // namespace

TEST_CASE("caching_pool reserves what PyTorch reserved, to the byte and to the segment",
          "[policy][caching][pytorch]") {
    const std::map<std::string, peer> peers = read_peers();
    REQUIRE(peers.size() == 7);
    const std::string name = GENERATE("resnet_train", "gpt_varlen_train", "gpt_ckpt_lora_train", "llm_decode",
                                      "detection_train", "gnn_train", "multistream_prefetch");
    CAPTURE(name);
    const std::vector<event> events = read_trace(name);
    REQUIRE(events.size() > 1000);
    replay r;
    r.run(events);
    const usage_counters usage = r.pool.usage();
    CHECK(usage.reserved.peak == peers.at(name).reserved);
    CHECK(usage.segments.peak == peers.at(name).segments);
    CHECK(r.device.reserved_peak() == peers.at(name).reserved);
    CHECK(r.device.calls(sim::call::allocate) == peers.at(name).segments);
    CHECK(r.device.calls(sim::call::deallocate) == 0);
    CHECK(r.pool.validate());

    r.drain();
    r.pool.trim(0);
    CHECK(r.pool.usage().allocated.current == 0);
    CHECK(r.device.reserved() == 0);
    CHECK(r.device.violations().empty());
}
