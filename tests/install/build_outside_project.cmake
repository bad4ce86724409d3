# Builds tests/install against tenure and runs the program.
#   -D WAY=package        tenure is installed into an empty folder and found there with find_package
#   -D WAY=subdirectory   tenure's source is added with add_subdirectory
#   -D SOURCE=... -D BUILD=... (tenure's own)  -D GENERATOR=... -D COMPILER=...
cmake_minimum_required(VERSION 3.22)

set(work ${BUILD}/tests/outside_${WAY})
file(REMOVE_RECURSE ${work})

function(run)
    execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
    if(NOT result EQUAL 0)
        string(REPLACE ";" " " command "${ARGN}")
        message(FATAL_ERROR "${command}\nended with ${result}\n${output}")
    endif()
    set(output "${output}" PARENT_SCOPE)
endfunction()

if(WAY STREQUAL "package")
    run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/prefix)
    set(from -D CMAKE_PREFIX_PATH=${work}/prefix)

    # The include folder holds our tree and nothing else, and all of it.
    file(GLOB installed RELATIVE ${work}/prefix/include ${work}/prefix/include/*)
    if(NOT installed STREQUAL "tenure")
        message(FATAL_ERROR "installed into include/: ${installed}")
    endif()
    file(GLOB_RECURSE here RELATIVE ${SOURCE}/include ${SOURCE}/include/*.hpp)
    file(GLOB_RECURSE there RELATIVE ${work}/prefix/include ${work}/prefix/include/*)
    if(NOT here STREQUAL there)
        message(FATAL_ERROR "headers in the source: ${here}\ninstalled: ${there}")
    endif()
else()
    set(from -D TENURE_SOURCE=${SOURCE})
endif()

run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${work}/build -G ${GENERATOR} -D CMAKE_CXX_COMPILER=${COMPILER} ${from})
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/outside)
message(STATUS "${output}")

if(EXISTS ${work}/prefix/bin/tenure)
    run(${work}/prefix/bin/tenure --version)
    message(STATUS "${output}")
endif()
