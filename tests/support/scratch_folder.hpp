#pragma once

/// \file
/// `scratch_folder`: an empty folder that is gone, with all in it, at the end of the scope.

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include <stdlib.h>

namespace tenure::test {

struct scratch_folder {
    scratch_folder() {
        std::string pattern = (std::filesystem::temp_directory_path() / "tenure-XXXXXX").string();
        if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
        path = pattern;
    }
    scratch_folder(const scratch_folder&) = delete;
    scratch_folder& operator=(const scratch_folder&) = delete;
    ~scratch_folder() {
        std::error_code ignored;
        std::filesystem::remove_all(path, ignored);
    }

    [[nodiscard]] std::string file(const std::string& name) const { return (path / name).string(); }
    /// Returns: the path of the file, which holds `bytes` now.
    [[nodiscard]] std::string file(const std::string& name, std::string_view bytes) const {
        std::ofstream(path / name, std::ios::binary) << bytes;
        return file(name);
    }
    [[nodiscard]] bool empty() const { return std::filesystem::is_empty(path); }

    std::filesystem::path path;
};

} // namespace tenure::test
