#include "html.hpp"

#include <array>

namespace tenure::cli {

std::string escaped(std::string_view text) {
    std::string out;
    for (const char c : text) {
        switch (c) {
        case '&': out += "&amp;"; break;
        case '<': out += "&lt;"; break;
        case '>': out += "&gt;"; break;
        case '"': out += "&quot;"; break;
        default: out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
        }
    }
    return out;
}

const char* series_colour(std::size_t i) {
    static constexpr std::array<const char*, series_colours> colours{
        "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#8A7A00", "#808080"};
    return colours[i % colours.size()];
}

void html_page::add_data(std::string_view id, std::string_view json) {
    scripts_ += "<script type=\"application/json\" id=\"" + std::string(id) + "\">";
    // The only thing that could end the block early; in JSON a < stands in strings alone.
    for (const char c : json) {
        if (c == '<')
            scripts_ += "\\u003c";
        else
            scripts_ += c;
    }
    scripts_ += "</script>\n";
}

void html_page::add_script(std::string_view code) {
    scripts_ += "<script>\n";
    scripts_ += code;
    scripts_ += "</script>\n";
}

std::string html_page::finish() const {
    const std::string title = escaped(title_);
    return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
           "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
           title + "</title>\n<style>\n" + std::string(page_css) + "</style>\n</head>\n<body>\n<main>\n" +
           body_ + "</main>\n" + scripts_ + "</body>\n</html>\n";
}

} // namespace tenure::cli
