#!/usr/bin/env bash
# Opens every door on a GPU as a new user would: from the installed packages, in a folder outside of the source tree. The
# examples are built there with CMake, as projects of their own.
#
#     tests/install/run_on_gpu.sh PREFIX WHEEL RESULTS
#
# PREFIX: where `cmake --install` or the Debian package has put tenure. WHEEL: what `pip wheel .` has made. RESULTS: made if need
# be; gets doors.txt, a line a door, and the output of each.
#
# Environment: PYTHON (python3), whose packages are used where there are any: torch, CuPy, Numba, and NVIDIA's libraries that come
# with torch. NUMBA_SITE: a folder of packages in front of those, for the run with Numba, which wants an older NumPy than others.
# RMM_SITE: a folder with the packages librmm and rapids_logger, for the examples of RMM and, with the newer CCCL in it, cuda::buffer.
# Exit: 77 where there is no GPU, 1 if a door stayed shut.
set -uo pipefail

[ $# -eq 3 ] || { sed -n '2,14s/^# \{0,1\}//p' "$0" >&2; exit 2; }
command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 || { echo "no GPU here"; exit 77; }
mkdir -p "$3"
prefix=$(cd "$1" && pwd) wheel=$(realpath "$2") results=$(cd "$3" && pwd) python=${PYTHON:-python3}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rmm=${RMM_SITE:+$(realpath "$RMM_SITE")}
for name in LIBRARY TORCH_LIBRARY PRELOAD_LIBRARY COMMAND CLI ARENAS TORCH; do unset "TENURE_$name"; done
: >"$results/doors.txt"
status=0

door() { # NAME SECONDS COMMAND...
    local name=$1 seconds=$2 start=$SECONDS rc=0 word=open
    shift 2
    timeout -k 5 "$seconds" "$@" >"$results/$name.log" 2>&1 || rc=$?
    case $rc in 0) ;; 77) word="not here: $(tail -1 "$results/$name.log")" ;; *) word="SHUT ($rc): $(tail -1 "$results/$name.log")" status=1 ;; esac
    echo "$name: $word, $((SECONDS - start)) s" | tee -a "$results/doors.txt"
}

# --- C++, C and CUDA: a project of its own over the installed package ---
mkdir -p "$work/project/neighbours" "$work/lib"
cp "$root"/examples/*.cpp "$root"/examples/c/*.c "$root"/tests/preload/gpu_program.cu "$root"/tests/preload/program.hpp "$work/project"
cp "$root"/examples/neighbours/*.cu "$root"/examples/neighbours/*.hpp "$work/project/neighbours"
nvidia=$("$python" -c 'import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec("nvidia").submodule_search_locations[0]))' 2>/dev/null || true)
if [ -n "$nvidia" ]; then # packages of Python have no links without a version
    for file in "$nvidia"/*/lib/lib{cudnn,nccl,cublas}.so.*; do
        [ ! -e "$file" ] || ln -sf "$file" "$work/lib/$(basename "$file" | sed 's/\.so\..*/.so/')"
    done
    export LD_LIBRARY_PATH=$(printf '%s:' "$nvidia"/*/lib)${LD_LIBRARY_PATH:-}
fi
cat >"$work/project/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.22)
project(doors LANGUAGES C CXX CUDA)
find_package(tenure REQUIRED)
find_package(CUDAToolkit REQUIRED)
set(CMAKE_CUDA_STANDARD 20)
add_compile_definitions(LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE) # CUDA 13.0 comes with CCCL 3.0
foreach(name quickstart two_tenants record_trace shared_gpu)
    add_executable(${name} ${name}.cpp)
    target_link_libraries(${name} PRIVATE tenure::tenure)
endforeach()
add_executable(shared_gpu_cuda shared_gpu.cpp)
target_compile_definitions(shared_gpu_cuda PRIVATE TENURE_EXAMPLE_ON_GPU)
target_link_libraries(shared_gpu_cuda PRIVATE tenure::tenure CUDA::cudart_static)
add_executable(tenants tenants.c)
target_link_libraries(tenants PRIVATE tenure::c)
function(neighbour name source) # LIBRARIES...
    add_executable(neighbour_${name} neighbours/${source}.cu)
    target_compile_options(neighbour_${name} PRIVATE -diag-suppress=2810)
    target_link_libraries(neighbour_${name} PRIVATE tenure::tenure ${ARGN})
endfunction()
foreach(name cub thrust cuda_buffer pinned_pmr cublas cudnn nccl)
    find_path(${name}_INCLUDE NAMES ${name}.h ${name}_v2.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    find_library(${name}_LIBRARY ${name} HINTS ${LIBRARIES} ${CUDAToolkit_LIBRARY_DIR})
    if(NOT ${name}_LIBRARY)
        unset(${name}_LIBRARY CACHE)
        set(${name}_LIBRARY "")
        if(name MATCHES "^(cublas|cudnn|nccl)$")
            message(STATUS "${name} not found")
            continue()
        endif()
    endif()
    neighbour(${name} ${name} ${${name}_LIBRARY})
    if(${name}_INCLUDE AND NOT ${name}_INCLUDE IN_LIST CUDAToolkit_INCLUDE_DIRS)
        target_include_directories(neighbour_${name} PRIVATE ${${name}_INCLUDE})
    endif()
endforeach()
if(RMM)
    foreach(name rmm cuda_buffer)
        neighbour(newer_${name} ${name})
        target_include_directories(neighbour_newer_${name} BEFORE PRIVATE ${RMM}/librmm/include/rapids ${RMM}/librmm/include
            ${RMM}/rapids_logger/include)
    endforeach()
    target_link_libraries(neighbour_newer_rmm PRIVATE ${RMM}/librmm/lib64/librmm.so ${RMM}/rapids_logger/lib64/librapids_logger.so)
endif()
add_executable(gpu_program gpu_program.cu)
set_target_properties(gpu_program PROPERTIES CUDA_RUNTIME_LIBRARY Shared)
target_link_libraries(gpu_program PRIVATE Threads::Threads)
CMAKE
door configure 60 cmake -S "$work/project" -B "$work/build" -D CMAKE_PREFIX_PATH="$prefix" -D CMAKE_BUILD_TYPE=Release \
    -D CMAKE_CUDA_ARCHITECTURES="${ARCHITECTURE:-native}" -D LIBRARIES="$work/lib" \
    -D RMM="$rmm" \
    -D CMAKE_INCLUDE_PATH="$(printf '%s;' "$nvidia"/*/include)"
door build 300 cmake --build "$work/build" -j "$(nproc)"
cd "$work/build" || exit 1
export LD_LIBRARY_PATH=$prefix/lib:$prefix/lib/x86_64-linux-gnu:${LD_LIBRARY_PATH:-}
for name in quickstart two_tenants record_trace shared_gpu shared_gpu_cuda; do door "$name" 60 "./$name"; done
door c 60 ./tenants cuda:0
for program in neighbour_*; do
    [ ! -x "$program" ] || [ -d "$program" ] || door "$program" 90 "./$program"
done

# --- the command ---
door compare 60 "$prefix/bin/tenure" compare "$work/build/trace.csv" --device cuda --verify --report "$results/report.html"
for policy in best_fit fronted_best_fit none; do
    door "run_$policy" 90 "$prefix/bin/tenure" run --limit 64MiB --policy "$policy" --summary -- ./gpu_program
done

# --- Python: the wheel in an environment of its own, which sees the packages of PYTHON ---
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -m venv --without-pip "$work/venv"
own=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "$site" >"$own/others.pth"
door wheel 60 "$python" -m pip install -q --no-index --no-deps --target "$own" "$wheel"
python=$work/venv/bin/python
mkdir -p "$work/a/b/c"
cp "$root"/tests/python/doors/gpu_doors.py "$root"/tests/python/doors/ipc_child.py "$work/a/b/c"
cd "$work/a/b/c" || exit 1
door python_info 60 "$python" -m tenure info
door python_doors 120 "$python" -X faulthandler gpu_doors.py
[ -z "${NUMBA_SITE:-}" ] || door numba 120 env PYTHONPATH="$NUMBA_SITE" "$python" gpu_doors.py numba
cat >torch_program.py <<'PYTHON'
import torch

x = torch.randn(4096, 4096, device="cuda", requires_grad=True)
(x @ x).sum().backward()
torch.cuda.synchronize()
print(torch.cuda.get_allocator_backend(), torch.cuda.memory_reserved() >> 20, "MiB reserved")
import tenure.torch

assert tenure.torch.installed()
with tenure.torch.arena("alice", max="256MiB"):
    held = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
    try:
        torch.empty(200 << 20, dtype=torch.uint8, device="cuda")
        raise SystemExit("the limit did not hold")
    except torch.cuda.OutOfMemoryError as error:
        print(str(error).splitlines()[0])
other = torch.empty(200 << 20, dtype=torch.uint8, device="cuda")  # nobody else notices
for usage in tenure.torch.arenas():
    print(usage.name, usage.charged, usage.max)
    assert usage.name != "alice" or 100 << 20 <= usage.charged <= 256 << 20
PYTHON
door torch_unchanged_program 120 env TENURE_TORCH=1 "$python" torch_program.py
grep -q "^tenure " "$results/torch_unchanged_program.log" || { echo "torch_unchanged_program: torch did not run on tenure" | tee -a "$results/doors.txt"; status=1; }
for name in c neighbour_pinned_pmr run_none python_doors; do # these need nothing that may be missing
    grep -q "^$name: open" "$results/doors.txt" || { echo "$name did not open" | tee -a "$results/doors.txt"; status=1; }
done
exit $status
