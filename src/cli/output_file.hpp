#pragma once

/// \file
/// `output_file`: a file that appears whole or not at all.
///
/// What is written goes to a neighbour with a name of its own first, and takes the real name in `commit`.
/// Whatever ends the program before that leaves the old file, if there was one, as it was. What is no regular
/// file (a pipe, /dev/stdout) cannot be replaced and is written directly. Thread-compatible.

#include <string>
#include <string_view>

namespace tenure::cli {

class output_file {
  public:
    /// Effects: makes sure, before any work is done for it, that the file can be written.
    /// Throws: `usage_error`.
    explicit output_file(std::string path);
    output_file(const output_file&) = delete;
    output_file& operator=(const output_file&) = delete;
    ~output_file();

    /// Effects: the file holds exactly `bytes`. Throws: `usage_error`; then the old file is untouched.
    void commit(std::string_view bytes);

  private:
    std::string path_;    ///< as the user wrote it
    std::string target_;  ///< behind symbolic links
    std::string pending_; ///< the neighbour; empty if written directly, or done
    int descriptor_ = -1;
};

} // namespace tenure::cli
