#pragma once

/// \file
/// `progress`: a bar on stderr while a person waits at a terminal; nothing in a pipe, and nothing left of it
/// at the end.
///
/// Thread-compatible.

#include <cstddef>
#include <string>

namespace tenure::cli {

class progress {
  public:
    /// Effects: shows nothing, ever, if stderr is no terminal or `wanted` is false.
    progress(std::size_t steps, bool wanted);
    progress(const progress&) = delete;
    progress& operator=(const progress&) = delete;
    ~progress();

    /// Effects: shows how many steps are done and what the next one is.
    void begin(const std::string& step);

  private:
    void erase() noexcept;

    std::size_t steps_;
    std::size_t done_ = 0;
    bool shown_;
    bool drawn_ = false;
};

} // namespace tenure::cli
