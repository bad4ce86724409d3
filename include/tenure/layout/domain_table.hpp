#pragma once

/// \file
/// `domain_table`: a record for each domain of a layout.
///
/// Indexed directly by the domain. Any free may bring in a domain never seen before, and a free may not need host
/// memory; so room for all 65 536 records is reserved with the first range. That is address space, not memory: pages
/// are touched up to the highest domain in use.
///
/// Cost: O(1). Thread-safety: thread-compatible.

#include <tenure/core/cache_lines.hpp>
#include <tenure/layout/layout.hpp>

#include <cstddef>
#include <limits>

namespace tenure::layout {

template <class Record>
class domain_table {
  public:
    /// Effects: no later call needs memory. Throws: `std::bad_alloc`, changing nothing.
    void reserve() { records_.reserve(std::size_t{std::numeric_limits<domain>::max()} + 1); }

    /// Requires: `reserve` has been called. Returns: the record of d, made on first use. Never moves.
    [[nodiscard]] Record& operator[](domain d) noexcept {
        if (d >= records_.size()) records_.resize(std::size_t{d} + 1);
        return records_[d];
    }

    /// Returns: the record of d, or null if it was never used.
    [[nodiscard]] Record* find(domain d) noexcept { return d < records_.size() ? &records_[d] : nullptr; }
    [[nodiscard]] const Record* find(domain d) const noexcept {
        return d < records_.size() ? &records_[d] : nullptr;
    }

    /// Returns: one more than the highest domain used.
    [[nodiscard]] std::size_t size() const noexcept { return records_.size(); }

  private:
    own_lines_vector<Record> records_;
};

} // namespace tenure::layout
