#pragma once

/// \file
/// `output_file`: a file that appears whole or not at all.
///
/// What is written goes to a neighbour with a name of its own first, and takes the real name, all in `commit`.
/// Whatever ends the program before that leaves the old file, if there was one, as it was, and nothing beside it.
/// What is no regular file (a pipe, /dev/stdout) cannot be replaced and is written directly; so is a file that must
/// stay what it is: a mount of its own, or another user's in a folder like /tmp. Thread-compatible.

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

    /// Effects: the file holds exactly `bytes`. Throws: `usage_error`; then the old file is untouched, if it could be
    /// replaced.
    void commit(std::string_view bytes);

  private:
    void make_pending();
    void write(std::string_view bytes);

    std::string path_;    ///< as the user wrote it
    std::string target_;  ///< behind symbolic links
    std::string pending_; ///< the neighbour; empty if written directly
    int descriptor_ = -1;
};

} // namespace tenure::cli
