#pragma once

/// \file
/// `tenure report`: draws a recorded run as a page of HTML that needs nothing else: no script, no font, no network.
///
///     all arenas, stacked, with the limits of the groups above them as dashed lines
///     then each arena alone, with its own limit

#include "compare.hpp"
#include "timeline.hpp"

#include <string>

namespace tenure::cli {

/// The command line, word for word.
struct report_options {
    std::string run;
    std::string output = "report.html"; ///< "-": stdout
};

/// Returns: the page.
std::string to_html(const timeline& t);

/// Throws: `usage_error`, `input_error`.
exit_code report(const report_options& options);

} // namespace tenure::cli
