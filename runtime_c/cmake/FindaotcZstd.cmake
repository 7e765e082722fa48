# Find libzstd and define the target aotc::zstd; the installed package searches again, so it stores no path.
#
# With aotc_USE_STATIC_ZSTD the library is libzstd.a. A target of zstd's own CMake package is preferred, such as one
# that FetchContent built.
set(aotcZstd_TARGET "")
if(NOT aotc_USE_STATIC_ZSTD)
  set(aotcZstd_TARGETS zstd::libzstd_shared)
endif()
foreach(name zstd::libzstd_static ${aotcZstd_TARGETS} libzstd_static)
  if(TARGET ${name} AND NOT aotcZstd_TARGET)
    set(aotcZstd_TARGET ${name})
  endif()
endforeach()

if(aotcZstd_TARGET)
  set(aotcZstd_LIBRARY_NAME ${aotcZstd_TARGET})
else()
  find_path(ZSTD_INCLUDE_DIR zstd.h)
  if(aotc_USE_STATIC_ZSTD)
    find_library(ZSTD_STATIC_LIBRARY libzstd.a)
    set(aotcZstd_LIBRARY_NAME "${ZSTD_STATIC_LIBRARY}")
  else()
    find_library(ZSTD_LIBRARY zstd)
    set(aotcZstd_LIBRARY_NAME "${ZSTD_LIBRARY}")
  endif()
  mark_as_advanced(ZSTD_INCLUDE_DIR ZSTD_LIBRARY ZSTD_STATIC_LIBRARY)
endif()

# A program that links libaotc.a needs the library alone, not the header.
set(aotcZstd_REQUIRED aotcZstd_LIBRARY_NAME)
if(aotcZstd_FIND_COMPONENTS STREQUAL "header" AND NOT aotcZstd_TARGET)
  list(APPEND aotcZstd_REQUIRED ZSTD_INCLUDE_DIR)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(aotcZstd REQUIRED_VARS ${aotcZstd_REQUIRED}
  REASON_FAILURE_MESSAGE "install libzstd-dev (Debian), libzstd-devel (RHEL) or zstd (conda)")

if(aotcZstd_FOUND AND NOT TARGET aotc::zstd)
  if(aotcZstd_TARGET)
    add_library(aotc::zstd INTERFACE IMPORTED GLOBAL)
    set_target_properties(aotc::zstd PROPERTIES INTERFACE_LINK_LIBRARIES ${aotcZstd_TARGET})
  else()
    add_library(aotc::zstd UNKNOWN IMPORTED GLOBAL)
    set_target_properties(aotc::zstd PROPERTIES IMPORTED_LOCATION "${aotcZstd_LIBRARY_NAME}")
    if(ZSTD_INCLUDE_DIR)
      set_target_properties(aotc::zstd PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${ZSTD_INCLUDE_DIR}")
    endif()
  endif()
endif()
