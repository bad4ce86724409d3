#include "support/catch.hpp"
#include "support/random.hpp"

#include <tenure/core/index_tree.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <random>
#include <set>
#include <utility>
#include <vector>

using namespace tenure;

namespace {

struct item {
    std::uint64_t key = 0;
    tree_links links;
};

struct by_key {
    item* items;
    [[nodiscard]] tree_links& links(node_index i) const { return items[i].links; }
    [[nodiscard]] bool less(node_index a, node_index b) const {
        return std::pair(items[a].key, a) < std::pair(items[b].key, b);
    }
};

/// With a summary: the largest weight below.
struct weighted_item : item {
    std::uint64_t weight = 0, most = 0;
};

struct by_key_and_weight {
    weighted_item* items;
    [[nodiscard]] tree_links& links(node_index i) const { return items[i].links; }
    [[nodiscard]] bool less(node_index a, node_index b) const {
        return std::pair(items[a].key, a) < std::pair(items[b].key, b);
    }
    [[nodiscard]] std::uint64_t& summary(node_index i) const { return items[i].most; }
    [[nodiscard]] std::uint64_t summarize(node_index i) const {
        std::uint64_t most = items[i].weight;
        for (const node_index c : items[i].links.child)
            if (c != no_node) most = std::max(most, items[c].most);
        return most;
    }
};

unsigned height(const by_key& order, node_index n) {
    if (n == no_node) return 0;
    return 1 + std::max(height(order, order.links(n).child[0]), height(order, order.links(n).child[1]));
}

} // namespace

TEST_CASE("an empty index_tree has no nodes", "[core][index_tree]") {
    index_tree tree;
    const by_key order{nullptr};
    CHECK(tree.empty());
    CHECK(tree.first(order) == no_node);
    CHECK(tree.last(order) == no_node);
    CHECK(tree.first_where(order, [](node_index) { return true; }) == no_node);
    CHECK(tree.validate(order, 0));
    CHECK_FALSE(tree.validate(order, 1));
}

TEST_CASE("index_tree stays flat for ascending, descending and alternating keys", "[core][index_tree]") {
    const int kind = GENERATE(0, 1, 2);
    constexpr std::uint32_t n = 4096;
    std::vector<item> items(n);
    const by_key order{items.data()};
    index_tree tree;
    for (std::uint32_t i = 0; i < n; ++i) {
        items[i].key = kind == 0 ? i : kind == 1 ? n - i : (i % 2 ? i : 2 * n - i);
        tree.insert(order, i);
    }
    CHECK(tree.validate(order, n));
    CHECK(height(order, tree.root()) <= 1.44 * std::log2(n + 2));
}

TEST_CASE("index_tree agrees with std::set", "[core][index_tree]") {
    CAPTURE(test::seed());
    std::mt19937_64 rng(test::seed());
    constexpr std::uint32_t n = 200;
    std::vector<item> items(n);
    const by_key order{items.data()};
    index_tree tree;
    std::set<std::pair<std::uint64_t, node_index>> oracle;
    for (int step = 0; step < 4000; ++step) {
        const auto i = static_cast<node_index>(test::below(rng, n));
        CAPTURE(step, i);
        if (oracle.count({items[i].key, i}) != 0) {
            tree.erase(order, i);
            oracle.erase({items[i].key, i});
        } else if (test::chance(rng, step % 1000 < 500 ? 90 : 40)) {
            items[i].key = test::below(rng, 50); // many equal keys: the index decides
            tree.insert(order, i);
            oracle.emplace(items[i].key, i);
        }
        REQUIRE(tree.validate(order, oracle.size()));
        REQUIRE(tree.first(order) == (oracle.empty() ? no_node : oracle.begin()->second));
        REQUIRE(tree.last(order) == (oracle.empty() ? no_node : oracle.rbegin()->second));
        const std::uint64_t key = test::below(rng, 52);
        const auto expected = oracle.lower_bound({key, 0});
        REQUIRE(tree.first_where(order, [&](node_index x) { return items[x].key >= key; }) ==
                (expected == oracle.end() ? no_node : expected->second));
    }
    node_index at = tree.first(order);
    for (const auto& [key, i] : oracle) {
        REQUIRE(at == i);
        at = tree.next(order, at);
    }
    CHECK(at == no_node);
}

TEST_CASE("index_tree sees broken links, order and balance", "[core][index_tree]") {
    std::vector<item> items(7);
    const by_key order{items.data()};
    index_tree tree;
    for (node_index i = 0; i < 7; ++i) {
        items[i].key = i;
        tree.insert(order, i);
    }
    REQUIRE(tree.validate(order, 7));
    CHECK_FALSE(tree.validate(order, 6));
    CHECK_FALSE(tree.validate(order, 8));
    std::swap(items[0].key, items[6].key);
    CHECK_FALSE(tree.validate(order, 7));
    std::swap(items[0].key, items[6].key);
    items[3].links.balance = 1;
    CHECK_FALSE(tree.validate(order, 7));
    items[3].links.balance = 0;
    items[0].links.parent = 5;
    CHECK_FALSE(tree.validate(order, 7));
}

TEST_CASE("index_tree finds by summaries what a walk finds", "[core][index_tree]") {
    CAPTURE(test::seed());
    std::mt19937_64 rng(test::seed());
    constexpr std::uint32_t n = 200;
    std::vector<weighted_item> items(n);
    const by_key_and_weight order{items.data()};
    index_tree tree;
    std::set<std::pair<std::uint64_t, node_index>> oracle;
    for (int step = 0; step < 6000; ++step) {
        const auto i = static_cast<node_index>(test::below(rng, n));
        CAPTURE(step, i);
        const bool is_in = oracle.count({items[i].key, i}) != 0;
        if (!is_in && test::chance(rng, step % 1000 < 500 ? 90 : 40)) {
            items[i].key = test::below(rng, 1000);
            items[i].weight = test::below(rng, 50);
            tree.insert(order, i);
            oracle.emplace(items[i].key, i);
        } else if (is_in && test::chance(rng, 30)) {
            items[i].weight = test::below(rng, 50);
            tree.refreshed(order, i);
        } else if (is_in && test::chance(rng, 50)) { // another node takes its place
            const auto heir = static_cast<node_index>(test::below(rng, n));
            if (oracle.count({items[heir].key, heir}) != 0) continue;
            const auto at = oracle.erase(oracle.find({items[i].key, i}));
            const auto below = at == oracle.begin() ? 0 : std::prev(at)->first + 1;
            const auto above = at == oracle.end() ? items[i].key + 1 : at->first;
            items[heir].key = below < above ? above - 1 : items[i].key;
            items[heir].weight = test::below(rng, 50);
            const auto added = oracle.emplace(items[heir].key, heir).first;
            if (std::next(added) !=
                at) { // an equal key and a higher index than its neighbour's: not its place
                oracle.erase(added);
                oracle.emplace(items[i].key, i);
                continue;
            }
            tree.replace(order, i, heir);
        } else if (is_in) {
            tree.erase(order, i);
            oracle.erase({items[i].key, i});
        }
        REQUIRE(tree.validate(order, oracle.size()));
        const std::uint64_t least = test::below(rng, 52);
        const auto within = [&](node_index x) { return items[x].most >= least; };
        const auto is = [&](node_index x) { return items[x].weight >= least; };
        node_index found = tree.first_of(order, within, is);
        for (const auto& [key, x] : oracle) {
            if (!is(x)) continue;
            REQUIRE(found == x);
            found = tree.next_of(order, found, within, is);
        }
        REQUIRE(found == no_node);
    }
}

TEST_CASE("index_tree sees a summary that is not up to date", "[core][index_tree]") {
    std::vector<weighted_item> items(7);
    const by_key_and_weight order{items.data()};
    index_tree tree;
    for (node_index i = 0; i < 7; ++i) {
        items[i].key = i;
        items[i].weight = i;
        tree.insert(order, i);
    }
    REQUIRE(tree.validate(order, 7));
    items[0].weight = 9;
    CHECK_FALSE(tree.validate(order, 7));
    tree.refreshed(order, 0);
    CHECK(tree.validate(order, 7));
    CHECK(tree.first_of(
              order, [&](node_index x) { return items[x].most >= 9; },
              [&](node_index x) { return items[x].weight >= 9; }) == 0);
}
