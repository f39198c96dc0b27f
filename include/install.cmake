# What a program outside this tree needs: headers, libcairn, plug-ins beside it, find_package(cairn), cairn.pc.
# All paths are relative to the files themselves, so an installed tree can be moved.
include(CMakePackageConfigHelpers)

install(DIRECTORY ${CMAKE_CURRENT_LIST_DIR}/cairn DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(TARGETS cairn EXPORT cairnTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
foreach(plugin cairn_cpu cairn_cuda cairn_rocm)
  if(TARGET ${plugin})
    install(TARGETS ${plugin} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endforeach()
if(EXISTS ${PROJECT_SOURCE_DIR}/samples/models/wayfarer.cairn)
  install(FILES ${PROJECT_SOURCE_DIR}/samples/models/wayfarer.cairn DESTINATION ${CMAKE_INSTALL_DATADIR}/cairn)
endif()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/cairn)
install(EXPORT cairnTargets NAMESPACE cairn:: DESTINATION ${cmake_dir})
file(WRITE ${PROJECT_BINARY_DIR}/cairnConfig.cmake
  "# find_package(cairn) gives the target cairn::cairn.\ninclude(\${CMAKE_CURRENT_LIST_DIR}/cairnTargets.cmake)\n")
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cairnConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cairnConfig.cmake ${PROJECT_BINARY_DIR}/cairnConfigVersion.cmake
        DESTINATION ${cmake_dir})

set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH up /prefix/${pkgconfig_dir} /prefix)
string(REGEX REPLACE "/$" "" up ${up})
file(WRITE ${PROJECT_BINARY_DIR}/cairn.pc
  "prefix=\${pcfiledir}/${up}\n"
  "libdir=\${prefix}/${CMAKE_INSTALL_LIBDIR}\n"
  "includedir=\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}\n\n"
  "Name: cairn\n"
  "Description: ${PROJECT_DESCRIPTION}\n"
  "Version: ${PROJECT_VERSION}\n"
  "Libs: -L\${libdir} -lcairn\n"
  "Cflags: -I\${includedir}\n")
install(FILES ${PROJECT_BINARY_DIR}/cairn.pc DESTINATION ${pkgconfig_dir})
