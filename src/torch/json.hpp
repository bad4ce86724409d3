#pragma once

/// \file
/// `json_text`: writes JSON, as little of it as the C interface needs.
///
/// Commas come by themselves. Requires: what is opened is closed, in order. Thread-compatible.

#include <tenure/core/error.hpp>

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

namespace tenure::torch {

class json_text {
  public:
    json_text& open(char bracket) {
        comma();
        text_ += bracket;
        first_ = true;
        return *this;
    }
    json_text& close(char bracket) {
        text_ += bracket;
        first_ = false;
        return *this;
    }
    json_text& key(std::string_view name) {
        comma();
        quote(name);
        text_ += ": ";
        first_ = true;
        return *this;
    }
    json_text& value(std::string_view text) {
        comma();
        quote(text);
        return *this;
    }
    json_text& value(std::size_t n) { return raw(std::to_string(n)); }
    json_text& flag(bool b) { return raw(b ? "true" : "false"); }
    json_text& null() { return raw("null"); }
    json_text& number(double x) {
        char digits[32];
        std::snprintf(digits, sizeof digits, "%.17g", x);
        return raw(digits);
    }
    /// Null for `no_limit`.
    json_text& limit(std::size_t n) { return n == no_limit ? null() : value(n); }

    [[nodiscard]] const std::string& text() const noexcept { return text_; }

  private:
    json_text& raw(std::string_view token) {
        comma();
        text_ += token;
        return *this;
    }
    void comma() {
        if (!first_) text_ += ", ";
        first_ = false;
    }
    void quote(std::string_view s) {
        text_ += '"';
        for (const char c : s) {
            if (c == '"' || c == '\\') {
                text_ += '\\';
                text_ += c;
            } else if (static_cast<unsigned char>(c) < 0x20) {
                char escaped[8];
                std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
                text_ += escaped;
            } else {
                text_ += c;
            }
        }
        text_ += '"';
    }

    std::string text_;
    bool first_ = true;
};

} // namespace tenure::torch
