#pragma once

/// \file
/// `html_page`: the frame of every page that the command writes: one file that needs no network, looks right on a phone
/// and in print, light or dark.
///
/// The style sheet and the scripts are the files in cli/html, compiled in.

#include <cstddef>
#include <string>
#include <string_view>

namespace tenure::cli {

/// Compiled in; see src/CMakeLists.txt.
extern const std::string_view page_css;
extern const std::string_view comparison_js;

/// Returns: `text` as HTML shows it, in content and in quoted attributes. Control characters become '?'.
std::string escaped(std::string_view text);

/// The colours of series, of Okabe and Ito: distinct for all common kinds of colour blindness. Series are told apart by
/// pattern and label as well; the one after the last has the colour of the first.
inline constexpr std::size_t series_colours = 8;
const char* series_colour(std::size_t i);

class html_page {
  public:
    /// `title`: plain text.
    explicit html_page(std::string_view title) : title_(title) {}

    /// Effects: appends to the body.
    void add(std::string_view html) { body_ += html; }

    /// Effects: data for the script, as a block of JSON with this id. Requires: `json` is JSON.
    void add_data(std::string_view id, std::string_view json);

    /// Effects: a script that runs when all else is there.
    void add_script(std::string_view code);

    /// Returns: the whole file.
    [[nodiscard]] std::string finish() const;

  private:
    std::string title_;
    std::string body_;
    std::string scripts_;
};

} // namespace tenure::cli
