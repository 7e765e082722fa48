# aotc_add_archive(NAME MANIFEST FILE [TARGETS TARGET…] [KERNELS KERNEL…] [OPTIONS OPTION…])
#
# Builds the archive of a manifest with the program `aotc`, and defines the library NAME: libNAME.a, NAME.h and
# aotc::runtime. NAME is that of the manifest's package. It is built again when the manifest, a manifest it includes, a
# kernel, an import or the tuning table changes, or `aotc` itself.
#
# AOTC_EXECUTABLE is the program; by default the one of an active virtual environment, or on PATH.
include_guard(GLOBAL)
cmake_policy(PUSH)
cmake_policy(VERSION 3.18...3.25) # CMP0116: paths of depfiles

function(aotc_add_archive name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "MANIFEST" "TARGETS;KERNELS;OPTIONS")
  if(CMAKE_VERSION VERSION_LESS 3.20)
    message(FATAL_ERROR "aotc_add_archive needs CMake 3.20 or later, for depfiles; this is ${CMAKE_VERSION}")
  endif()
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "aotc_add_archive(${name}): unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
  get_filename_component(manifest "${arg_MANIFEST}" ABSOLUTE)
  if(NOT arg_MANIFEST OR NOT EXISTS "${manifest}")
    message(FATAL_ERROR "aotc_add_archive(${name}): there is no MANIFEST \"${manifest}\"")
  endif()
  find_program(AOTC_EXECUTABLE aotc HINTS ENV VIRTUAL_ENV PATH_SUFFIXES bin DOC "The compiler `aotc`")
  if(NOT AOTC_EXECUTABLE)
    message(FATAL_ERROR "aotc_add_archive(${name}): there is no `aotc`: run CMake in its virtual environment, or set "
      "-DAOTC_EXECUTABLE=…/bin/aotc")
  endif()

  # The files are called after the package.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${manifest}")
  file(READ "${manifest}" text)
  if(text MATCHES "\\[package\\].*" AND CMAKE_MATCH_0 MATCHES "\n[ \t]*name[ \t]*=[ \t]*[\"']([^\"']*)[\"']"
     AND NOT CMAKE_MATCH_1 STREQUAL name)
    message(FATAL_ERROR "aotc_add_archive(${name}): the package of ${manifest} is called ${CMAKE_MATCH_1}: "
      "call both the same")
  endif()

  set(folder "${CMAKE_CURRENT_BINARY_DIR}/aotc/${name}")
  file(MAKE_DIRECTORY "${folder}")
  set(options ${arg_OPTIONS})
  foreach(target ${arg_TARGETS})
    list(APPEND options --target ${target})
  endforeach()
  foreach(kernel ${arg_KERNELS})
    list(APPEND options --kernel ${kernel})
  endforeach()
  if(CMAKE_CROSSCOMPILING)
    list(APPEND options --host ${CMAKE_SYSTEM_PROCESSOR})
  endif()
  # A table that appears later is no input of the last build.
  string(REGEX REPLACE "\\.[^./]*$" ".tuning.toml" tuning "${manifest}")
  file(GLOB tuning CONFIGURE_DEPENDS "${tuning}")

  # `aotc` leaves unchanged files alone, so programs are not linked again. Make needs a new time of one.
  add_custom_command(
    OUTPUT "${folder}/${name}.aotc"
    BYPRODUCTS "${folder}/${name}.h" "${folder}/${name}.sources.json" "${folder}/lib${name}.a"
    COMMAND "${AOTC_EXECUTABLE}" build "${manifest}" -o "${folder}" --depfile "${folder}/${name}.d" ${options}
    COMMAND ${CMAKE_COMMAND} -E touch "${folder}/${name}.aotc"
    DEPENDS "${manifest}" "${AOTC_EXECUTABLE}" ${tuning}
    DEPFILE "${folder}/${name}.d"
    COMMENT "Building the archive ${name}"
    VERBATIM)
  add_custom_target(${name}_archive DEPENDS "${folder}/${name}.aotc")
  add_library(${name} STATIC IMPORTED GLOBAL)
  set_target_properties(${name} PROPERTIES
    IMPORTED_LOCATION "${folder}/lib${name}.a" INTERFACE_INCLUDE_DIRECTORIES "${folder}"
    INTERFACE_LINK_LIBRARIES aotc::runtime)
  add_dependencies(${name} ${name}_archive)
endfunction()

cmake_policy(POP)
