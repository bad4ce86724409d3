#pragma once

/// \file
/// `decimals`: a number with so many digits behind the point.

#include <array>
#include <cstdio>
#include <string>

namespace tenure::cli {

inline std::string decimals(double n, int digits) {
    std::array<char, 64> text{};
    std::snprintf(text.data(), text.size(), "%.*f", digits, n);
    return text.data();
}

} // namespace tenure::cli
