# How this project's own targets are compiled: warnings are errors, and sanitizers when asked for. Nothing of this
# reaches the users of tenure::tenure.
include_guard()

option(TENURE_WERROR "Treat warnings in tenure's own targets as errors" ${PROJECT_IS_TOP_LEVEL})
set(TENURE_SANITIZE "" CACHE STRING "Sanitizers for tenure's own targets: address (with undefined), thread, or none")
set_property(CACHE TENURE_SANITIZE PROPERTY STRINGS "" address thread)

add_library(tenure_own INTERFACE)
target_link_libraries(tenure_own INTERFACE tenure::tenure)
set(cxx $<COMPILE_LANGUAGE:CXX>)
target_compile_options(tenure_own INTERFACE
    $<${cxx}:-Wall -Wextra -Wpedantic -Wconversion -Wshadow>
    $<$<AND:${cxx},$<BOOL:${TENURE_WERROR}>>:-Werror>
    # 20011: CCCL copies host types in functions that it marks for both sides.
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra -diag-suppress=20011>
    $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${TENURE_WERROR}>>:-Werror=all-warnings>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # GCC 12 sees overlapping copies in std::string's operator+ that are not there (GCC bug 105651).
    target_compile_options(tenure_own INTERFACE
        $<${cxx}:-Wno-restrict> $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wno-restrict>)
endif()

if(TENURE_SANITIZE STREQUAL "address")
    set(sanitizers -fsanitize=address,undefined -fno-sanitize-recover=all)
elseif(TENURE_SANITIZE STREQUAL "thread")
    set(sanitizers -fsanitize=thread)
elseif(TENURE_SANITIZE)
    message(FATAL_ERROR "TENURE_SANITIZE is \"${TENURE_SANITIZE}\"; it may be address, thread or empty")
endif()
if(sanitizers)
    target_compile_options(tenure_own INTERFACE $<${cxx}:${sanitizers} -fno-omit-frame-pointer>)
    target_link_options(tenure_own INTERFACE ${sanitizers})
endif()

# tenure_require(<package> <Debian package> [find_package arguments...])
# Like find_package(... REQUIRED), and says what to install.
macro(tenure_require package debian_name)
    find_package(${package} ${ARGN} QUIET)
    if(NOT ${package}_FOUND)
        message(FATAL_ERROR "tenure: ${package} was not found. On Debian and Ubuntu: apt-get install ${debian_name}")
    endif()
endmacro()
