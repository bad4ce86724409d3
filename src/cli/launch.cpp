#include "launch.hpp"

#include "errors.hpp"

#include "../policies/policy_choice.hpp"

#include <tenure/core/units.hpp>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>

#include <elf.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tenure::cli {

namespace {

/// The major version of the CUDA runtime whose functions the preload library stands before.
constexpr int supported_runtime = 13;

constexpr std::string_view runtime_name = "libcudart.so.";

bool executable(const std::string& path) {
    struct stat s {};
    return ::stat(path.c_str(), &s) == 0 && S_ISREG(s.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

/// A file of 64-bit ELF in memory; what lies outside of it is not there.
class elf_image {
  public:
    explicit elf_image(const std::string& bytes) : bytes_(bytes) {}

    template <class T>
    [[nodiscard]] std::optional<T> at(std::uint64_t offset) const {
        T value{};
        if (offset > bytes_.size() || sizeof(T) > bytes_.size() - offset) return std::nullopt;
        std::memcpy(&value, bytes_.data() + offset, sizeof value);
        return value;
    }
    [[nodiscard]] std::string text_at(std::uint64_t offset) const {
        if (offset >= bytes_.size()) return {};
        return bytes_.substr(offset, bytes_.find('\0', offset) - offset);
    }
    [[nodiscard]] bool has(std::string_view text) const { return bytes_.find(text) != std::string::npos; }

  private:
    const std::string& bytes_;
};

/// What the loader reads of it.
void read_dynamic(const elf_image& image, const Elf64_Ehdr& header, program_file& file) {
    std::vector<Elf64_Phdr> loads;
    std::optional<Elf64_Phdr> dynamic;
    for (unsigned i = 0; i < header.e_phnum; ++i) {
        const auto segment = image.at<Elf64_Phdr>(header.e_phoff + std::uint64_t{i} * header.e_phentsize);
        if (!segment) return;
        if (segment->p_type == PT_LOAD) loads.push_back(*segment);
        if (segment->p_type == PT_DYNAMIC) dynamic = segment;
        if (segment->p_type == PT_INTERP) file.dynamic = true;
    }
    if (!dynamic) return;
    std::uint64_t strings = 0;
    std::vector<std::uint64_t> names;
    for (std::uint64_t offset = 0; offset < dynamic->p_filesz; offset += sizeof(Elf64_Dyn)) {
        const auto entry = image.at<Elf64_Dyn>(dynamic->p_offset + offset);
        if (!entry || entry->d_tag == DT_NULL) break;
        if (entry->d_tag == DT_NEEDED) names.push_back(entry->d_un.d_val);
        if (entry->d_tag == DT_STRTAB) strings = entry->d_un.d_ptr;
    }
    for (const Elf64_Phdr& load : loads)
        if (strings >= load.p_vaddr && strings - load.p_vaddr < load.p_filesz) {
            for (const std::uint64_t name : names)
                file.needed.push_back(image.text_at(strings - load.p_vaddr + load.p_offset + name));
            return;
        }
}

std::string own_folder() {
    std::string path(4096, '\0');
    const ssize_t n = ::readlink("/proc/self/exe", path.data(), path.size());
    if (n <= 0) return ".";
    path.resize(static_cast<std::size_t>(n));
    return path.substr(0, path.rfind('/'));
}

/// Beside the program, in the places where a build, an installation and a wheel have it.
std::string preload_library() {
    const char* const named = std::getenv("TENURE_PRELOAD_LIBRARY");
    if (named != nullptr && *named != '\0') {
        if (::access(named, R_OK) == 0) return named;
        throw usage_error(std::string("TENURE_PRELOAD_LIBRARY says ") + named + ": " + std::strerror(errno));
    }
    const std::string folder = own_folder();
    for (const char* place : {"/../lib/", "/../lib/tenure/", TENURE_LIBRARY_FOLDER, "/"}) {
        const std::string path = folder + place + "libtenure_preload.so";
        if (::access(path.c_str(), R_OK) == 0) return path;
    }
    throw usage_error(
        "libtenure_preload.so was not found beside this program; it is built where CUDA's toolkit is. "
        "TENURE_PRELOAD_LIBRARY can name it");
}

void set(const char* name, const std::string& value) {
    if (::setenv(name, value.c_str(), 1) != 0)
        throw usage_error(std::string(name) + ": " + std::strerror(errno));
}

} // namespace

int program_file::runtime() const {
    for (const std::string& name : needed) {
        if (name.compare(0, runtime_name.size(), runtime_name) != 0) continue;
        int major = 0;
        const char* const end = name.data() + name.size();
        if (std::from_chars(name.data() + runtime_name.size(), end, major).ec == std::errc{}) return major;
    }
    return 0;
}

std::string find_program(const std::string& name) {
    if (name.find('/') != std::string::npos) {
        if (executable(name)) return name;
        throw usage_error(name + ": " + std::strerror(::access(name.c_str(), F_OK) == 0 ? EACCES : ENOENT));
    }
    const char* const path = std::getenv("PATH");
    std::string_view folders = path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path;
    while (true) {
        const std::size_t colon = std::min(folders.find(':'), folders.size());
        const std::string_view folder = folders.substr(0, colon);
        const std::string candidate = (folder.empty() ? "." : std::string(folder)) + "/" + name;
        if (executable(candidate)) return candidate;
        if (colon == folders.size()) break;
        folders.remove_prefix(colon + 1);
    }
    throw usage_error(name + ": there is no such program on the PATH");
}

program_file read_program(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    if (!in.is_open() || in.bad()) throw usage_error(path + ": cannot be read");
    program_file file;
    struct stat s {};
    file.privileged = ::stat(path.c_str(), &s) == 0 && (s.st_mode & (S_ISUID | S_ISGID)) != 0;
    const elf_image image(bytes);
    const auto header = image.at<Elf64_Ehdr>(0);
    if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return file;
    file.elf = true;
    if (header->e_ident[EI_CLASS] != ELFCLASS64) return file;
    read_dynamic(image, *header, file);
    // Device code, or the table of error names that every CUDA runtime has.
    file.carries_cuda = image.has(".nv_fatbin") || image.has("cudaErrorMemoryAllocation");
    return file;
}

std::string out_of_reach(const program_file& file) {
    if (file.privileged) return "it runs with another user's rights, and the loader preloads nothing then";
    if (!file.elf) return {};
    if (!file.dynamic) return "it is linked statically as a whole, so the loader has no hand in it";
    const int runtime = file.runtime();
    if (runtime == 0 && file.carries_cuda)
        return "it carries the CUDA runtime in itself (nvcc's default, -cudart static), so its calls are out "
               "of reach; "
               "linked with -cudart shared it would do";
    if (runtime != 0 && runtime != supported_runtime)
        return "it uses the CUDA runtime " + std::to_string(runtime) + ", and this is for " +
               std::to_string(supported_runtime);
    return {};
}

void launch(const launch_options& options) {
    if (options.command.empty())
        throw usage_error("run: which program? tenure run --limit 8GiB -- ./program");
    if (!options.limit.empty()) (void)parse_bytes(options.limit);
    if (!options.policy.empty() && options.policy != "none") {
        const std::string name = policies::parse_policy(options.policy).name;
        const std::string known = std::string(" ") + policies::policy_names + " ";
        if (known.find(" " + name + " ") == std::string::npos)
            throw usage_error("there is no policy \"" + name + "\" (known: none " + policies::policy_names +
                              ")");
    }
    const std::string path = find_program(options.command.front());
    if (const std::string why = out_of_reach(read_program(path)); !why.empty() && !options.force)
        throw usage_error(path + ": nothing would be limited: " + why + ". --force starts it all the same");

    const char* const others = std::getenv("LD_PRELOAD");
    set("LD_PRELOAD",
        preload_library() + (others == nullptr || *others == '\0' ? "" : ":" + std::string(others)));
    if (!options.limit.empty()) set("TENURE_RUN_LIMIT", options.limit);
    if (!options.policy.empty()) set("TENURE_RUN_POLICY", options.policy);
    if (options.publish) set("TENURE_PUBLISH", "1");
    if (options.summary) set("TENURE_RUN_SUMMARY", "1");

    std::signal(SIGPIPE, SIG_DFL); // as it was given to us
    std::vector<char*> arguments;
    for (const std::string& a : options.command) arguments.push_back(const_cast<char*>(a.c_str()));
    arguments.push_back(nullptr);
    ::execv(path.c_str(), arguments.data());
    throw usage_error(path + ": " + std::strerror(errno));
}

} // namespace tenure::cli
