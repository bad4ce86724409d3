#pragma once

/// \file
/// `scratch_file`: a file with given bytes that is gone at the end of the scope.

#include "support/scratch_folder.hpp"

#include <stdexcept>
#include <string>
#include <string_view>

#include <zlib.h>

namespace tenure::test {

class scratch_file {
  public:
    explicit scratch_file(std::string_view bytes, const std::string& name = "trace.csv")
        : path_(folder_.file(name, bytes)) {}

    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] std::string folder() const { return folder_.path.string(); }

  private:
    scratch_folder folder_;
    std::string path_;
};

/// Returns: `text` as a gzip file.
inline std::string gzip(std::string_view text) {
    z_stream z{};
    if (deflateInit2(&z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        throw std::runtime_error("deflateInit2");
    std::string out(deflateBound(&z, text.size()), '\0');
    z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    z.avail_in = static_cast<uInt>(text.size());
    z.next_out = reinterpret_cast<Bytef*>(out.data());
    z.avail_out = static_cast<uInt>(out.size());
    if (deflate(&z, Z_FINISH) != Z_STREAM_END) throw std::runtime_error("deflate");
    out.resize(z.total_out);
    deflateEnd(&z);
    return out;
}

} // namespace tenure::test
