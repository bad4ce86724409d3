#pragma once

/// \file
/// `print`: text to stdout, all of it or a reason why not.

#include <string_view>

namespace tenure::cli {

/// Returns: whether somebody still reads; who has gone away wants no more, and that is no error.
/// Throws: `usage_error` when stdout cannot take the text for any other reason.
[[nodiscard]] bool print(std::string_view text);

} // namespace tenure::cli
