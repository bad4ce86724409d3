#pragma once

/// \file
/// `account_picture`: an account, or a book of them, as an operator's view asks for it (`arenas_view.hpp`).
///
/// Plain values; thread-compatible.

#include <tenure/tenancy/account_ledger.hpp>
#include <tenure/tenancy/arena_row.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tenure {

struct account_picture {
    const void* key = nullptr;        ///< which one, while it lives
    std::vector<const void*> above{}; ///< keys of those above it, the next first, the book last
    std::uint64_t arena = 0;          ///< id of the arena whose pool they share; 0: it is none
    row_kind kind = row_kind::account;
    std::string path{}; ///< names from the root of that arena's tree, joined by '/'
    account_reading reading{};
    std::optional<std::uint64_t> refused{}; ///< number of charges, by whichever level; of a book
    std::optional<std::size_t> open{};      ///< number of accounts; of a book
    std::optional<std::uint64_t> blocks{};  ///< live; of an account
};

/// Returns: the row, without its id and its place.
inline arena_row row_of(const account_picture& p) {
    using f = arena_field;
    arena_row row{.kind = p.kind, .path = p.path};
    row.values.fill(arena_row::none);
    row[f::used] = p.reading.used();
    row[f::allocated] = p.reading.used();
    row[f::charged] = p.reading.charged;
    row[f::stocked] = p.reading.stocked;
    row[f::peak] = p.reading.peak;
    row[f::max] = p.reading.max;
    row[f::at_max] = p.reading.refused;
    row[f::refused] = p.refused.value_or(arena_row::none);
    row[f::accounts] = p.open.value_or(arena_row::none);
    row[f::blocks] = p.blocks.value_or(arena_row::none);
    return row;
}

} // namespace tenure
