#pragma once

/// \file
/// A pool's picture as JSON. Function of values.

#include <tenure/resource/usage.hpp>
#include <tenure/tenancy/arenas_text.hpp>

#include <string>
#include <string_view>

namespace tenure::c {

/// Returns: the object that tenure_snapshot_json describes, without line breaks.
inline std::string snapshot_text(std::string_view path, const memory_snapshot& snapshot) {
    std::string out = R"({"path":)";
    tenure::detail::append_json_string(out, path);
    out += R"(,"segments":[)";
    for (const segment_snapshot& s : snapshot.segments) {
        if (&s != &snapshot.segments.front()) out += ',';
        out += R"({"address":)" + std::to_string(s.address) + R"(,"size":)" + std::to_string(s.size);
        out += R"(,"blocks":[)";
        for (const block_snapshot& b : s.blocks) {
            if (&b != &s.blocks.front()) out += ',';
            out += R"({"address":)" + std::to_string(b.block != 0 ? b.block : b.address);
            out += R"(,"size":)" + std::to_string(b.size) + R"(,"requested":)" + std::to_string(b.requested);
            out += R"(,"state":")" + std::string(to_string(b.state));
            out += R"(","stream":)" + std::to_string(b.stream) + '}';
        }
        out += "]}";
    }
    out += "]}";
    return out;
}

} // namespace tenure::c
