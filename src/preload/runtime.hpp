#pragma once

/// \file
/// `runtime`: the CUDA runtime library that the program itself has loaded, wherever it lies.
///
///     program --> cudaMalloc of this library --> runtime::find("cudaMalloc") --> the program's libcudart.so.13
///
/// Not linked, because then every program that is started with this library (a shell, too) would load CUDA. Looked up when
/// first asked for: in the order of the loader's search, else in whatever libcudart is loaded, also where a plug-in has
/// loaded it for itself alone (as Python does).
///
/// Cost: one load after the first call. Thread-safety: thread-safe.

#include <atomic>
#include <cstring>
#include <string>

#include <dlfcn.h>
#include <link.h>

namespace tenure::preload {

class runtime {
  public:
    /// Returns: null where the program has no CUDA runtime, or one without this function.
    static void* find(const char* name) noexcept {
        if (void* const next = ::dlsym(RTLD_NEXT, name)) return next;
        void* const library = loaded();
        return library == nullptr ? nullptr : ::dlsym(library, name);
    }

  private:
    /// Returns: a handle of the libcudart that is loaded, or null.
    static void* loaded() noexcept {
        static std::atomic<void*> known{nullptr};
        if (void* const library = known.load(std::memory_order_acquire)) return library;
        void* library = nullptr;
        (void)::dl_iterate_phdr(
            [](dl_phdr_info* info, std::size_t, void* found) {
                const char* const slash = std::strrchr(info->dlpi_name, '/');
                const char* const name = slash == nullptr ? info->dlpi_name : slash + 1;
                if (std::strncmp(name, "libcudart.so", 12) != 0) return 0;
                *static_cast<void**>(found) = ::dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
                return 1;
            },
            &library);
        known.store(library, std::memory_order_release);
        return library;
    }
};

/// A function of the program's runtime, looked up once. `Function` is its type.
template <class Function>
class runtime_function;

template <class Result, class... Arguments>
class runtime_function<Result(Arguments...)> {
  public:
    constexpr explicit runtime_function(const char* name) noexcept : name_(name) {}

    /// Returns: what the runtime's function returns; `missing` where there is none.
    Result call(Result missing, Arguments... arguments) noexcept {
        pointer f = found_.load(std::memory_order_acquire);
        if (f == nullptr) {
            f = reinterpret_cast<pointer>(runtime::find(name_));
            if (f == nullptr) return missing;
            found_.store(f, std::memory_order_release);
        }
        return f(arguments...);
    }

  private:
    using pointer = Result (*)(Arguments...);
    const char* name_;
    std::atomic<pointer> found_{nullptr};
};

} // namespace tenure::preload
