#pragma once

/// \file
/// Byte units: literals (`8_GiB`), parsing (`parse_bytes("8GiB")`) and printing (`format_bytes`).
///
/// A size is always a whole number of bytes in a `std::size_t`; this header only gives it readable spellings. Binary
/// units only (KiB = 2^10 ... EiB = 2^60): "GB" means two different things to two readers, so it is an error and the
/// message says what to write instead.

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tenure {

inline namespace literals {

constexpr std::size_t shifted_bytes(unsigned long long n, unsigned shift) {
    if (n > (std::numeric_limits<std::size_t>::max() >> shift))
        throw std::out_of_range("size literal does not fit in 64 bits");
    return static_cast<std::size_t>(n) << shift;
}

constexpr std::size_t operator""_B(unsigned long long n) {
    return shifted_bytes(n, 0);
}
constexpr std::size_t operator""_KiB(unsigned long long n) {
    return shifted_bytes(n, 10);
}
constexpr std::size_t operator""_MiB(unsigned long long n) {
    return shifted_bytes(n, 20);
}
constexpr std::size_t operator""_GiB(unsigned long long n) {
    return shifted_bytes(n, 30);
}
constexpr std::size_t operator""_TiB(unsigned long long n) {
    return shifted_bytes(n, 40);
}

} // namespace literals

/// A text that should have been a size in bytes and was not. `what()` quotes the text and says what is accepted.
class invalid_byte_size : public std::invalid_argument {
  public:
    using std::invalid_argument::invalid_argument;
};

/// Reads a size: digits, then optionally one of `B KiB MiB GiB TiB PiB EiB` (`K M G T P E` are short for the binary
/// units, as in most command lines). Spaces may stand between number and unit. No sign, no fraction.
///
/// Returns: the size in bytes. Throws: `invalid_byte_size` for anything else, overflow included.
inline std::size_t parse_bytes(std::string_view text) {
    struct unit {
        std::string_view name;
        unsigned shift;
    };
    static constexpr std::array<unit, 14> units{{{"", 0},
                                                 {"B", 0},
                                                 {"KiB", 10},
                                                 {"K", 10},
                                                 {"MiB", 20},
                                                 {"M", 20},
                                                 {"GiB", 30},
                                                 {"G", 30},
                                                 {"TiB", 40},
                                                 {"T", 40},
                                                 {"PiB", 50},
                                                 {"P", 50},
                                                 {"EiB", 60},
                                                 {"E", 60}}};
    const auto fail = [text](const char* why) {
        throw invalid_byte_size("invalid size \"" + std::string(text) + "\": " + why +
                                " (write whole bytes, or a whole number with KiB, MiB, GiB, TiB: 512MiB)");
    };
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc::result_out_of_range) fail("the number does not fit in 64 bits");
    if (error != std::errc{}) fail("no number");
    std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
    while (rest.size() > 1 && rest.front() == ' ')
        rest.remove_prefix(1); // a space at the end stays, as no unit
    for (const unit& u : units) {
        if (rest != u.name) continue;
        if (number > (std::numeric_limits<std::uint64_t>::max() >> u.shift)) fail("more than 64 bits");
        return number << u.shift;
    }
    fail("unknown unit");
    return 0; // not reached
}

/// Returns: `n` in the largest binary unit that keeps it >= 1, with two decimals where they say something
/// ("512 B", "1.50 MiB", "20 MiB"). For people; machines get plain bytes.
inline std::string format_bytes(std::size_t n) {
    static constexpr std::array<const char*, 7> names{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    unsigned unit = 0;
    while (unit + 1 < names.size() && (n >> (10 * (unit + 1))) != 0) ++unit;
    const std::size_t whole = n >> (10 * unit);
    const std::size_t rest = n - (whole << (10 * unit));
    std::string text = std::to_string(whole);
    if (rest != 0) {
        // As an integer: a double would round 1023.999.../1024 up to 100 hundredths.
        const unsigned spare =
            unit > 1 ? 10 * (unit - 1) : 0; // low bits that cannot show, so that x 100 fits
        const auto hundredths = static_cast<unsigned>((rest >> spare) * 100 >> (10 * unit - spare));
        text += '.';
        text += static_cast<char>('0' + hundredths / 10);
        text += static_cast<char>('0' + hundredths % 10);
    }
    return text + ' ' + names[unit];
}

} // namespace tenure
