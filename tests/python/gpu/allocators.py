"""The allocators that the feature tests run under, with the same assertions for all.

    native      torch's own
    tenure      this project's; tenure:caching is the policy caching
    pluggable   torch.cuda.memory.CUDAPluggableAllocator around cudaMalloc and cudaFree, compiled here
    rmm         RMM's integration, rmm.allocators.torch, over the driver's stream-ordered pool

TENURE_TEST_ALLOCATOR names one (default: tenure). Programs that the tests start, and the children that those start, call
`install()` first thing.
"""

import ctypes
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile

VARIABLE = "TENURE_TEST_ALLOCATOR"
SOURCE = pathlib.Path(__file__).resolve().parents[3] / "src" / "python"

PLUGGABLE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>

/* The CUDA runtime that torch has loaded, whatever its version. */
static void* function(const char* name) {
    void* found = dlsym(RTLD_DEFAULT, name);
    if (!found) found = dlsym(dlopen(getenv("TENURE_TEST_CUDART"), RTLD_NOW | RTLD_NOLOAD), name);
    return found;
}

static size_t taken, given_back;
size_t source_taken(void) { return __atomic_load_n(&taken, __ATOMIC_SEQ_CST); }
size_t source_given_back(void) { return __atomic_load_n(&given_back, __ATOMIC_SEQ_CST); }

void* source_malloc(size_t size, int device, void* stream) {
    int (*allocate)(void**, size_t) = (int (*)(void**, size_t))function("cudaMalloc");
    int (*forget_error)(void) = (int (*)(void))function("cudaGetLastError");
    void* memory = NULL;
    (void)device, (void)stream;
    if (size == 0) return NULL;
    if (allocate(&memory, size) != 0) {
        forget_error();
        return NULL;
    }
    __atomic_add_fetch(&taken, 1, __ATOMIC_SEQ_CST);
    return memory;
}

void source_free(void* memory, size_t size, int device, void* stream) {
    int (*release)(void*) = (int (*)(void*))function("cudaFree");
    (void)size, (void)device, (void)stream;
    if (!memory) return;
    release(memory);
    __atomic_add_fetch(&given_back, 1, __ATOMIC_SEQ_CST);
}
"""


def name():
    """The allocator that this process runs under."""
    return os.environ.get(VARIABLE, "tenure")


def is_tenure():
    return name().partition(":")[0] == "tenure"


def source_library():
    """The path of the compiled cudaMalloc and cudaFree; raises OSError or CalledProcessError without a compiler."""
    code = PLUGGABLE.encode()
    path = pathlib.Path(tempfile.gettempdir()) / f"tenure-source-{hashlib.sha256(code).hexdigest()[:12]}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory() as folder:
            made = pathlib.Path(folder) / "source.so"
            compiler = os.environ.get("CC", "cc")
            subprocess.run(
                [compiler, "-x", "c", "-shared", "-fPIC", "-O1", "-o", str(made), "-", "-ldl"], input=code, check=True,
                capture_output=True, timeout=60,
            )  # fmt: skip
            part = path.with_suffix(f".{os.getpid()}")
            part.write_bytes(made.read_bytes())
            part.replace(path)
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        runtimes = sorted({line.split()[-1] for line in maps if "libcudart.so" in line})
    if runtimes:
        os.environ["TENURE_TEST_CUDART"] = runtimes[0]
    return str(path)


def source_counts():
    """How many segments the compiled source has handed out and got back, in this process."""
    library = ctypes.CDLL(source_library())
    for function in (library.source_taken, library.source_given_back):
        function.restype = ctypes.c_size_t
    return library.source_taken(), library.source_given_back()


def install(which=None, **options):
    """Put the allocator in charge of this process. Options are those of tenure.torch.install; others ignore them."""
    which, _, policy = (which or name()).partition(":")
    if which == "native":
        return
    if which == "tenure":
        if str(SOURCE) not in sys.path:
            sys.path.insert(0, str(SOURCE))
        import tenure.torch

        if policy:
            options["policy"] = policy
        tenure.torch.install(**options)
        return
    if which == "pluggable":
        import torch

        allocator = torch.cuda.memory.CUDAPluggableAllocator(source_library(), "source_malloc", "source_free")
        torch.cuda.memory.change_current_allocator(allocator)
        return
    if which == "rmm":
        import rmm
        import torch
        from rmm.allocators.torch import rmm_torch_allocator

        rmm.mr.set_current_device_resource(rmm.mr.CudaAsyncMemoryResource())
        torch.cuda.memory.change_current_allocator(rmm_torch_allocator)
        return
    raise ValueError(f"{VARIABLE} is {which!r}: it may be native, tenure, tenure:POLICY, pluggable or rmm")
