#pragma once

/// \file
/// `text_table`: rows of text in columns that stand under each other, no wider than there is room for.
///
///     trace   policy   live peak  reserved peak         the first columns to the left, numbers to the right
///     a       caching   7.86 GiB      11.50 GiB
///
/// Where there is too little room, the first column is shortened, down to its `least`; then columns are left out, the one
/// with the highest `leaves` first. Those with 0 stay, and the first: a table may still be wider than its room.
///
/// Complexity: linear in the cells. Plain values.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace tenure::cli {

class text_table {
  public:
    struct column {
        std::string head;
        bool left = false;   ///< where its cells stand
        unsigned leaves = 0; ///< 0: never; the highest first
    };

    explicit text_table(std::vector<column> columns) : columns_(std::move(columns)) {}

    /// Effects: adds a line. Requires: as many cells as there are columns.
    void add(std::vector<std::string> cells) { lines_.push_back(std::move(cells)); }
    /// Effects: a blank line stands before the next that is added.
    void leave_a_gap() { gaps_.push_back(lines_.size()); }

    struct fitted {
        std::string text;                  ///< each line ended
        std::vector<std::string> left_out; ///< heads of columns
    };
    /// `room`: characters in a line; 0: no end. `least`: how narrow the first column may get; 0: it is not shortened, else at
    /// least 3.
    [[nodiscard]] fitted fit(std::size_t room = 0, std::size_t least = 0) const;

  private:
    std::vector<column> columns_;
    std::vector<std::vector<std::string>> lines_;
    std::vector<std::size_t> gaps_; ///< indices of lines, rising
};

} // namespace tenure::cli
