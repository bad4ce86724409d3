#pragma once

/// \file
/// `sim::violation_log`: what a program did that a real device would have answered with undefined behaviour.
///
/// Keeps the first thousand texts and counts the rest: one early mistake can cause many later ones, and the
/// first is the one to read. Thread-compatible.

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace tenure::sim {

class violation_log {
  public:
    void add(std::string text) {
        if (texts_.size() < kept)
            texts_.push_back(std::move(text));
        else
            ++more_;
    }

    [[nodiscard]] std::vector<std::string> texts() const {
        std::vector<std::string> all = texts_;
        if (more_ != 0) all.push_back("and " + std::to_string(more_) + " more");
        return all;
    }

  private:
    static constexpr std::size_t kept = 1000;
    std::vector<std::string> texts_;
    std::uint64_t more_ = 0;
};

/// Returns: "0x70000000". For messages.
inline std::string hex(std::uint64_t n) {
    char text[24];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(n));
    return text;
}

} // namespace tenure::sim
