// A program without CUDA that loads a plug-in, as Python does: the plug-in's runtime is known to nobody else.

#include <cstdio>

#include <dlfcn.h>

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    void* const plugged = ::dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (plugged == nullptr) {
        std::fprintf(stderr, "%s\n", ::dlerror());
        return 2;
    }
    const auto run = reinterpret_cast<int (*)()>(::dlsym(plugged, "run"));
    return run == nullptr ? 2 : run();
}
