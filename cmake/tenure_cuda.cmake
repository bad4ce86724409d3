# Sets TENURE_HAVE_CUDA, enables the CUDA language and finds the toolkit, as TENURE_CUDA asks.
include_guard()

set(TENURE_HAVE_CUDA OFF)
if(TENURE_CUDA STREQUAL "OFF")
    message(STATUS "tenure: TENURE_CUDA=OFF: CUDA parts left out")
    return()
endif()

# nvcc often stands in its toolkit's folder and not on the PATH.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(TENURE_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
    if(TENURE_NVCC)
        set(CMAKE_CUDA_COMPILER ${TENURE_NVCC})
    endif()
endif()
include(CheckLanguage)
check_language(CUDA)

if(CMAKE_CUDA_COMPILER)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
        set(CMAKE_CUDA_ARCHITECTURES 90-real)
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    # The toolkit for code that the host's compiler reads: nvcc finds CCCL by itself, g++ does not.
    add_library(tenure_cuda_toolkit INTERFACE)
    set(cxx $<COMPILE_LANGUAGE:CXX>)
    target_link_libraries(tenure_cuda_toolkit INTERFACE CUDA::cudart_static)
    target_include_directories(tenure_cuda_toolkit SYSTEM INTERFACE
        $<${cxx}:${CUDAToolkit_INCLUDE_DIRS}> $<${cxx}:${CUDAToolkit_INCLUDE_DIRS}/cccl>)
    # By hand: before 3.25.2 CMake knows no CUDA_STANDARD 20.
    target_compile_options(tenure_cuda_toolkit INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>)
    # CCCL 3.0, which CUDA 13.0 ships, hides cuda::mr without it; later versions do not look at it.
    target_compile_definitions(tenure_cuda_toolkit INTERFACE LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
    set(TENURE_HAVE_CUDA ON)
    message(STATUS "tenure: CUDA parts with nvcc ${CMAKE_CUDA_COMPILER_VERSION}")
elseif(TENURE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "tenure: TENURE_CUDA=ON, but nvcc was not found")
else()
    message(STATUS "tenure: nvcc not found: CUDA parts left out")
endif()
