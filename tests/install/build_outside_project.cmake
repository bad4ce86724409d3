# Builds tests/install against tenure and runs the program.
#   -D WAY=package        tenure is installed into an empty folder and found there with find_package
#   -D WAY=debian         the same with the Debian package, unpacked there
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
    file(GLOB_RECURSE here RELATIVE ${SOURCE}/include ${SOURCE}/include/*.hpp ${SOURCE}/include/*.h)
    file(GLOB_RECURSE there RELATIVE ${work}/prefix/include ${work}/prefix/include/*)
    if(NOT here STREQUAL there)
        message(FATAL_ERROR "headers in the source: ${here}\ninstalled: ${there}")
    endif()
elseif(WAY STREQUAL "debian")
    find_program(dpkg_deb dpkg-deb)
    if(NOT dpkg_deb)
        message(STATUS "tenure: not tested: there is no dpkg-deb here")
        return()
    endif()
    run(${CMAKE_CPACK_COMMAND} --config ${BUILD}/CPackConfig.cmake -G DEB -B ${work}/deb)
    file(GLOB package ${work}/deb/tenure_*.deb)
    run(${dpkg_deb} -x ${package} ${work}/prefix)
    set(from -D CMAKE_PREFIX_PATH=${work}/prefix/usr)
else()
    set(from -D TENURE_SOURCE=${SOURCE})
endif()

run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${work}/build -G ${GENERATOR} -D CMAKE_CXX_COMPILER=${COMPILER} ${from})
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/outside)
message(STATUS "${output}")

file(GLOB command ${work}/prefix/bin/tenure ${work}/prefix/usr/bin/tenure)
if(command)
    run(${command} --version)
    message(STATUS "${output}")
endif()

# pkg-config, from the compiler's point of view.
find_program(pkg_config NAMES pkg-config pkgconf)
if(WAY STREQUAL "package" AND pkg_config)
    file(GLOB_RECURSE pc ${work}/prefix/tenure.pc)
    cmake_path(GET pc PARENT_PATH pc_dir)
    set(ENV{PKG_CONFIG_PATH} ${pc_dir})
    run(${pkg_config} --cflags --libs tenure)
    separate_arguments(flags UNIX_COMMAND "${output}")
    run(${COMPILER} -std=c++20 -fsyntax-only ${flags} ${CMAKE_CURRENT_LIST_DIR}/main.cpp)
endif()

# The C interface: a project without C++ finds it by CMake, and the compiler by pkg-config.
file(GLOB_RECURSE c_pc ${work}/prefix/tenure-c.pc)
if(c_pc)
    run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/c -B ${work}/c -G ${GENERATOR}
        -D EXAMPLE=${SOURCE}/examples/c/tenants.c ${from})
    run(${CMAKE_COMMAND} --build ${work}/c)
    run(${work}/c/outside_c)
    message(STATUS "${output}")
    find_program(c_compiler NAMES cc gcc clang)
    if(pkg_config)
        cmake_path(GET c_pc PARENT_PATH pc_dir)
        set(ENV{PKG_CONFIG_PATH} ${pc_dir})
        set(ENV{PKG_CONFIG_ALLOW_SYSTEM_LIBS} 1)
        set(ENV{PKG_CONFIG_ALLOW_SYSTEM_CFLAGS} 1)
        run(${pkg_config} --cflags --libs tenure-c)
        separate_arguments(flags UNIX_COMMAND "${output}")
        run(${c_compiler} -std=c11 -Wall -Wextra -Wpedantic -Werror ${SOURCE}/examples/c/tenants.c ${flags}
            -o ${work}/by_pkg_config)
        run(${pkg_config} --variable=libdir tenure-c)
        string(STRIP "${output}" libdir)
        run(${CMAKE_COMMAND} -E env LD_LIBRARY_PATH=${libdir} ${work}/by_pkg_config)
    endif()
endif()
