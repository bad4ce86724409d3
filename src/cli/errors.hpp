#pragma once

/// \file
/// The ways in which the program can fail. Each `what()` is one line for a person; who is to blame
/// decides the exit code.

#include <cstddef>
#include <stdexcept>
#include <string>

namespace tenure::cli {

/// The command line asks for something that cannot be done.
class usage_error : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

/// A file cannot be used. `what()` is "FILE:LINE: message", or "FILE: message" where no line is to blame.
class input_error : public std::runtime_error {
  public:
    input_error(const std::string& path, const std::string& message)
        : std::runtime_error(path + ": " + message) {}
    input_error(const std::string& path, std::size_t line, const std::string& message)
        : std::runtime_error(path + ":" + std::to_string(line) + ": " + message) {}
};

/// The GPU or its driver failed: neither the policies' fault nor the user's.
class device_failure : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

/// A policy broke a promise, or the replay itself did: a bug, never the user's fault.
class replay_error : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

} // namespace tenure::cli
