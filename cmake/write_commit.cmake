# cmake -D SOURCE=<project> -D COMPILER=<text> -D OUTPUT=<header> -P write_commit.cmake
# Writes which commit this is, for the results of benchmarks. Touches the file only when it changes.
cmake_policy(VERSION 3.22)
execute_process(COMMAND git describe --always --dirty --abbrev=12 --exclude=*
    WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
    set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#pragma once
namespace bench {
inline constexpr const char* commit = \"${commit}\";
inline constexpr const char* compiler = \"${COMPILER}\";
} // namespace bench
")
