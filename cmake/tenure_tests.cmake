# Helpers of tests/CMakeLists.txt.
include_guard()

tenure_require(Catch2 catch2 CONFIG)
tenure_require(ZLIB zlib1g-dev) # traces are compressed
include(Catch)

# What all test programs share: assertions on in every build type, Catch2's main, one precompiled header.
add_library(tenure_test_settings INTERFACE)
target_link_libraries(tenure_test_settings INTERFACE tenure_own ZLIB::ZLIB)
target_include_directories(tenure_test_settings INTERFACE ${PROJECT_SOURCE_DIR}/tests)
target_compile_options(tenure_test_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-UNDEBUG>)
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT TENURE_SANITIZE)
    # The third of the build's time that -O2 adds buys nothing for programs that run for seconds.
    target_compile_options(tenure_test_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
endif()
target_compile_definitions(tenure_test_settings INTERFACE
    _GLIBCXX_ASSERTIONS TENURE_TRACES_DIR="${PROJECT_SOURCE_DIR}/benchmarks/traces")
if(TARGET tenure_command)
    target_compile_definitions(tenure_test_settings INTERFACE TENURE_CLI="${PROJECT_BINARY_DIR}/bin/tenure")
endif()

if(TARGET Catch2::Catch2WithMain) # version 3
    file(WRITE ${PROJECT_BINARY_DIR}/catch_main.cpp "// Catch2::Catch2WithMain has main().\n")
    target_link_libraries(tenure_test_settings INTERFACE Catch2::Catch2WithMain)
else()
    file(WRITE ${PROJECT_BINARY_DIR}/catch_main.cpp "#define CATCH_CONFIG_MAIN\n#include <catch2/catch.hpp>\n")
    target_link_libraries(tenure_test_settings INTERFACE Catch2::Catch2)
endif()
add_library(tenure_test_main STATIC ${PROJECT_BINARY_DIR}/catch_main.cpp)
target_link_libraries(tenure_test_main PUBLIC tenure_test_settings)

# Reading Catch2 and the standard library takes longer than reading most tests.
add_library(tenure_test_pch OBJECT ${PROJECT_BINARY_DIR}/empty.cpp)
file(WRITE ${PROJECT_BINARY_DIR}/empty.cpp "")
target_link_libraries(tenure_test_pch PRIVATE tenure_test_settings)
target_precompile_headers(tenure_test_pch PRIVATE "${PROJECT_SOURCE_DIR}/tests/support/catch.hpp" <algorithm> <array>
    <atomic> <chrono> <functional> <map> <memory> <mutex> <random> <set> <string> <thread> <unordered_map> <vector>)

# tenure_add_tests(<folder> [LIBRARIES <target>...]): one program, test_<folder>, from tests/<folder>/**.cpp.
function(tenure_add_tests folder)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LIBRARIES")
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${folder}/*.cpp)
    if(TENURE_SANITIZE STREQUAL "thread")
        set(threaded "")
        set(subjects "") # the policies that a suite runs over
        foreach(source IN LISTS sources)
            file(STRINGS ${source} includes REGEX "#include <thread>")
            if(includes)
                list(APPEND threaded ${source})
            elseif(source MATCHES "/subjects.cpp$")
                set(subjects ${source})
            endif()
        endforeach()
        if(threaded)
            list(APPEND threaded ${subjects})
        endif()
        set(sources ${threaded})
    endif()
    if(NOT sources)
        return()
    endif()
    add_executable(test_${folder} ${sources})
    target_link_libraries(test_${folder} PRIVATE tenure_test_main ${arg_LIBRARIES})
    target_precompile_headers(test_${folder} REUSE_FROM tenure_test_pch)
    catch_discover_tests(test_${folder} TEST_PREFIX "${folder}." PROPERTIES TIMEOUT 300)
endfunction()

# Every header compiles alone, and twice. Those that need CUDA's headers are compiled where the toolkit is.
function(tenure_add_header_checks)
    file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/include
        ${PROJECT_SOURCE_DIR}/include/tenure/*.hpp)
    foreach(header IN LISTS headers)
        string(MAKE_C_IDENTIFIER ${header} name)
        set(source ${PROJECT_BINARY_DIR}/headers_alone/${name}.cpp)
        file(CONFIGURE OUTPUT ${source} CONTENT "#include <@header@>\n#include <@header@>\n" @ONLY)
        file(STRINGS ${PROJECT_SOURCE_DIR}/include/${header} cuda_includes REGEX "#include <(cub|cuda|thrust)[/_a-z]*")
        if(cuda_includes OR header MATCHES "/cuda_")
            list(APPEND cuda_sources ${source})
        else()
            list(APPEND sources ${source})
        endif()
    endforeach()
    add_library(tenure_headers_alone OBJECT ${sources})
    target_link_libraries(tenure_headers_alone PRIVATE tenure_own)
    if(cuda_sources AND TENURE_HAVE_CUDA)
        add_library(tenure_cuda_headers_alone OBJECT ${cuda_sources})
        target_link_libraries(tenure_cuda_headers_alone PRIVATE tenure_own tenure_cuda_toolkit)
    endif()
endfunction()
