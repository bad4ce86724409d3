#pragma once

/// \file
/// `tenure run`: starts a program whose CUDA memory is limited and pooled, with no change to it, by the preload library
/// (`src/preload`).
///
/// What is out of its reach is said before the program starts, as far as its file tells: one that carries the CUDA runtime
/// in itself calls no function that could be stood before.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tenure::cli {

/// The command line, word for word.
struct launch_options {
    std::vector<std::string> command; ///< the program and its arguments
    std::string limit;                ///< bytes, as `parse_bytes` has them; empty: none
    std::string policy;               ///< NAME[:key=value,...], or none; empty: the library's own choice
    bool publish = false;
    bool summary = false;
    bool force = false;
};

/// What the file of a program says about its CUDA runtime.
struct program_file {
    bool elf = false;        ///< otherwise a script, whose interpreter is the program
    bool dynamic = false;    ///< the loader has a hand in it
    bool privileged = false; ///< set-user-id or set-group-id: the loader preloads nothing
    bool carries_cuda = false;
    std::vector<std::string> needed; ///< the libraries it names

    /// Returns: the major version of the CUDA runtime library that it names; 0: it names none.
    [[nodiscard]] int runtime() const;
};

/// Returns: where the shell would find it. Throws: `usage_error` if there is no such program.
std::string find_program(const std::string& name);

/// Throws: `usage_error` if it cannot be read.
program_file read_program(const std::string& path);

/// Returns: why nothing would be limited in this program; empty if nothing speaks against it.
std::string out_of_reach(const program_file& file);

/// Becomes the program. Throws: `usage_error` if that cannot be.
[[noreturn]] void launch(const launch_options& options);

} // namespace tenure::cli
