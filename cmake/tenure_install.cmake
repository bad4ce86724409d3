# `cmake --install`: the headers, the package for find_package(tenure), and the command with its traces.
include_guard()
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tenure)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/tenure DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
install(TARGETS tenure EXPORT tenure_targets)
set(same_architecture ARCH_INDEPENDENT)
if(TARGET tenure_c)
    install(TARGETS tenure_c EXPORT tenure_targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
    set(same_architecture "")
endif()
if(TARGET tenure_preload) # no library to link with: the command's own
    install(TARGETS tenure_preload LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/tenure)
endif()
install(EXPORT tenure_targets NAMESPACE tenure:: FILE tenure-targets.cmake DESTINATION ${package_dir})

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/tenure-config.cmake.in
    ${PROJECT_BINARY_DIR}/tenure-config.cmake INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor step may change interfaces.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tenure-config-version.cmake
    COMPATIBILITY SameMinorVersion ${same_architecture})
install(FILES ${PROJECT_BINARY_DIR}/tenure-config.cmake ${PROJECT_BINARY_DIR}/tenure-config-version.cmake
    DESTINATION ${package_dir})

# The same for pkg-config; the prefix is found from where the file lies, so an installation can be moved.
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH to_prefix ${CMAKE_INSTALL_PREFIX}/${pkgconfig_dir} ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" to_prefix "${to_prefix}")
list(TRANSFORM CMAKE_DL_LIBS PREPEND -l OUTPUT_VARIABLE dl_flags)
list(JOIN dl_flags " " dl_flags)
configure_file(${CMAKE_CURRENT_LIST_DIR}/tenure.pc.in ${PROJECT_BINARY_DIR}/tenure.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tenure.pc DESTINATION ${pkgconfig_dir})
if(TARGET tenure_c)
    configure_file(${CMAKE_CURRENT_LIST_DIR}/tenure-c.pc.in ${PROJECT_BINARY_DIR}/tenure-c.pc @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/tenure-c.pc DESTINATION ${pkgconfig_dir})
endif()

install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(TARGET tenure_command)
    install(TARGETS tenure_command DESTINATION ${CMAKE_INSTALL_BINDIR})
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/benchmarks/traces DESTINATION ${CMAKE_INSTALL_DATADIR}/tenure)
endif()

# `cpack --config build/release/CPackConfig.cmake`: a Debian package, and an archive with the same content.
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_NAME tenure)
set(CPACK_PACKAGE_CONTACT "tenure's authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES TRUE)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS TRUE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
include(CPack)
