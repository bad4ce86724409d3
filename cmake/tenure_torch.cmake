# Finds PyTorch's C++ side (headers, libc10, libc10_cuda) as TENURE_TORCH asks, and makes the target `tenure_torch_sdk` of
# it. Sets TENURE_HAVE_TORCH, TENURE_TORCH_PACKAGE (the folder of the package `torch`) and TENURE_TORCH_VERSION.
#
# No Python is linked and torch is not imported. What is needed of the package: include/, lib/libc10.so,
# lib/libc10_cuda.so and version.py, which a wheel has; the rest of it may be missing.
include_guard()

set(TENURE_TORCH AUTO CACHE STRING
    "Build the library for PyTorch: AUTO (when torch is found), ON, OFF, or the folder of the package torch")
set(TENURE_TORCH_DIR "" CACHE PATH "The folder of the package torch, for TENURE_TORCH=AUTO and ON")

set(TENURE_HAVE_TORCH OFF)
if(TENURE_TORCH STREQUAL "OFF")
    return()
endif()

# tenure_torch_missing(<why>): the end, or a line if nobody insists.
macro(tenure_torch_missing why)
    if(TENURE_TORCH STREQUAL "AUTO")
        message(STATUS "tenure: the library for PyTorch is left out: ${why}")
        return()
    endif()
    message(FATAL_ERROR "tenure: TENURE_TORCH=${TENURE_TORCH}, but ${why}")
endmacro()

# --- the package ----------------------------------------------------------------------------------------------------
set(TENURE_TORCH_PACKAGE "")
if(NOT TENURE_TORCH MATCHES "^(AUTO|ON)$")
    set(TENURE_TORCH_PACKAGE ${TENURE_TORCH})
elseif(TENURE_TORCH_DIR)
    set(TENURE_TORCH_PACKAGE ${TENURE_TORCH_DIR})
else()
    file(GLOB fetched ${PROJECT_SOURCE_DIR}/.cache/torch/2.11.0/torch)
    if(fetched)
        set(TENURE_TORCH_PACKAGE ${fetched})
    else()
        find_package(Python3 COMPONENTS Interpreter QUIET)
        if(Python3_FOUND)
            # -I: pip hides the real packages by PYTHONPATH when it builds in isolation.
            execute_process(COMMAND ${Python3_EXECUTABLE} -I -c
                "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
                OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
            set(TENURE_TORCH_PACKAGE ${found})
        endif()
    endif()
endif()
if(NOT TENURE_TORCH_PACKAGE)
    tenure_torch_missing("torch was not found (name it by TENURE_TORCH_DIR)")
endif()
set(allocator_header ${TENURE_TORCH_PACKAGE}/include/c10/cuda/CUDACachingAllocator.h)
foreach(needed include/c10/cuda/CUDACachingAllocator.h lib/libc10.so lib/libc10_cuda.so version.py)
    if(NOT EXISTS ${TENURE_TORCH_PACKAGE}/${needed})
        tenure_torch_missing("${TENURE_TORCH_PACKAGE} has no ${needed} (a torch without CUDA?)")
    endif()
endforeach()

# --- its version, and what the interface of that version has --------------------------------------------------------
file(STRINGS ${TENURE_TORCH_PACKAGE}/version.py version_line REGEX "^__version__")
string(REGEX REPLACE ".*'([0-9]+[.][0-9]+[.][0-9]+).*" "\\1" found_version "${version_line}")
set(TENURE_TORCH_VERSION ${found_version} CACHE INTERNAL "The version of torch that is built against")

# One line of the header for each thing that has come or gone between versions. The interface is overridden whole or not
# at all, so a version with another one is not supported yet, whatever compiles.
set(torch_features
    "snapshot with include_traces (2.11)" "bool include_traces"
    "the base class DeviceAllocator (2.9)" "class CUDAAllocator : public DeviceAllocator"
    "setNoSplit (2.10)" "setNoSplit")
while(torch_features)
    list(POP_FRONT torch_features name pattern)
    file(STRINGS ${allocator_header} has REGEX "${pattern}")
    if(NOT has)
        tenure_torch_missing("torch ${TENURE_TORCH_VERSION} is too old: it lacks ${name}; 2.11 is supported")
    endif()
endwhile()
file(STRINGS ${allocator_header} newer REGEX "attachOomRejectionObserver")
if(newer OR TENURE_TORCH_VERSION VERSION_GREATER_EQUAL 2.12)
    tenure_torch_missing("torch ${TENURE_TORCH_VERSION} is not supported yet; 2.11 is")
endif()

# --- CUDA's headers and runtime -------------------------------------------------------------------------------------
find_package(CUDAToolkit QUIET)
if(NOT CUDAToolkit_FOUND)
    tenure_torch_missing("CUDA's toolkit was not found (its headers and libcudart are needed, nvcc is not)")
endif()
# One runtime for both: torch's streams and current device must be ours.
file(STRINGS ${TENURE_TORCH_PACKAGE}/lib/libc10_cuda.so runtime REGEX "libcudart[.]so[.][0-9]+" LIMIT_COUNT 1)
string(REGEX REPLACE ".*libcudart[.]so[.]([0-9]+).*" "\\1" runtime "${runtime}")
if(NOT runtime EQUAL CUDAToolkit_VERSION_MAJOR)
    tenure_torch_missing(
        "torch uses CUDA ${runtime} and the toolkit is ${CUDAToolkit_VERSION}: they need the same major version")
endif()

add_library(tenure_torch_sdk INTERFACE)
target_include_directories(tenure_torch_sdk SYSTEM INTERFACE
    ${TENURE_TORCH_PACKAGE}/include ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(tenure_torch_sdk INTERFACE
    ${TENURE_TORCH_PACKAGE}/lib/libc10.so ${TENURE_TORCH_PACKAGE}/lib/libc10_cuda.so CUDA::cudart)

# The GPU trace is an interface of its own, and not a promised one: where it is another, the library does without.
set(traces TENURE_TORCH_TRACES_${TENURE_TORCH_VERSION})
if(NOT DEFINED ${traces})
    set(kept_type ${CMAKE_TRY_COMPILE_TARGET_TYPE})
    set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
    try_compile(${traces} ${PROJECT_BINARY_DIR}/torch_traces SOURCES ${CMAKE_CURRENT_LIST_DIR}/torch_traces.cpp
        CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${PROJECT_SOURCE_DIR}/src/torch;${PROJECT_SOURCE_DIR}/include;${TENURE_TORCH_PACKAGE}/include;${CUDAToolkit_INCLUDE_DIRS}"
        CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON)
    set(CMAKE_TRY_COMPILE_TARGET_TYPE ${kept_type})
endif()
if(${traces})
    target_compile_definitions(tenure_torch_sdk INTERFACE TENURE_TORCH_TRACES)
else()
    message(STATUS "tenure: torch ${TENURE_TORCH_VERSION} has another GPU trace: its waits are not listened to")
endif()

set(TENURE_HAVE_TORCH ON)
message(STATUS "tenure: the library for PyTorch ${TENURE_TORCH_VERSION}, from ${TENURE_TORCH_PACKAGE}")
