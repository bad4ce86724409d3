# `cmake --install`: the headers, the package for find_package(tenure), and the command with its traces.
include_guard()
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tenure)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/tenure DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    FILES_MATCHING PATTERN "*.hpp")
install(TARGETS tenure EXPORT tenure_targets)
install(EXPORT tenure_targets NAMESPACE tenure:: FILE tenure-targets.cmake DESTINATION ${package_dir})

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/tenure-config.cmake.in
    ${PROJECT_BINARY_DIR}/tenure-config.cmake INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor step may change interfaces.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tenure-config-version.cmake
    COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES ${PROJECT_BINARY_DIR}/tenure-config.cmake ${PROJECT_BINARY_DIR}/tenure-config-version.cmake
    DESTINATION ${package_dir})

install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(TARGET tenure_command)
    install(TARGETS tenure_command DESTINATION ${CMAKE_INSTALL_BINDIR})
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/benchmarks/traces DESTINATION ${CMAKE_INSTALL_DATADIR}/tenure)
endif()
