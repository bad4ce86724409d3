#pragma once

/// \file
/// `to_page`: a comparison as one page of HTML.
///
///     the answer: which policy, and how much memory it saves
///     ratio bars, a card a trace, the published peers beside
///     for each trace: timeline of live and reserved bytes, map of the memory at the peak
///     the table, which a click or the keyboard sorts
///
/// Text, bars and table are HTML and need no script; a script draws timelines and maps from a block of JSON with the id
/// "comparison".

#include "comparison.hpp"

#include <string>

namespace tenure::cli {

/// Requires: every row was replayed with `replay_options::footprint`. `device`: the GPU; empty for the simulated device.
/// Complexity: linear in rows, spans and runs of bytes.
std::string to_page(const comparison& rows, const std::string& device);

} // namespace tenure::cli
