#include "verification.hpp"

#include <tenure/core/units.hpp>

#include <cstdio>

namespace tenure::cli {

std::string mismatch::text() const {
    char place[64];
    std::snprintf(place, sizeof place, "0x%llx", static_cast<unsigned long long>(address));
    std::string text = "block " + std::to_string(block) + " (" + format_bytes(bytes) + " at " + place + ") " +
                       (side_stream ? "as another stream used it" : "at its free") + ": " +
                       std::to_string(bad_words) + " words of 16 bytes differ, the first at byte " +
                       std::to_string(first_bad);
    if (owner) text += "; there lies the content of block " + std::to_string(*owner);
    return text;
}

} // namespace tenure::cli
