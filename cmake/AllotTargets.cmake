# Three functions give every target the same language level, warnings and layout.
include_guard()

function(allot_flags target)
  get_target_property(unity ${target} UNITY_BUILD)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor>)
  if(ALLOT_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # At -O2 and above GCC 12 takes a text put before a std::string for one that may overlap it (GCC bug 105651).
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
  endif()
  if(unity)
    # GCC takes every source but the first of a unit for a header, in which others would see a type made of unnamed namespaces.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
  if(ALLOT_SANITIZE)
    # GCC 12 sees uninitialised members inside std::function (std::regex) once sanitizers are on.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
    target_compile_options(${target} PRIVATE -fsanitize=${ALLOT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    target_link_options(${target} PUBLIC -fsanitize=${ALLOT_SANITIZE})
  endif()
endfunction()

# For folders whose numbers depend on the optimiser: its level holds here where ./check lowers that of the others.
macro(allot_optimise_here)
  add_compile_options($<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O3>)
endmacro()

# allot_library(NAME SOURCES a.cc… [PUBLIC lib…] [PRIVATE lib…]): the library of a folder, linked as allot::NAME.
function(allot_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(allot_${name} STATIC ${arg_SOURCES})
  add_library(allot::${name} ALIAS allot_${name})
  target_include_directories(allot_${name} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/generated)  # of estimators
  target_link_libraries(allot_${name} PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
  allot_flags(allot_${name})
endfunction()

# allot_protobuf(NAME PROTO): messages of PROTO (a path from the repository's root), linked as allot::NAME. The generated code is
# a target of its own, without the project's warnings; its header is included by PROTO's path from the build folder.
function(allot_protobuf name proto)
  set(generated ${PROJECT_BINARY_DIR}/generated)
  string(REGEX REPLACE "[.]proto$" ".pb" stem ${generated}/${proto})
  add_custom_command(
    OUTPUT ${stem}.cc ${stem}.h
    COMMAND ${CMAKE_COMMAND} -E make_directory ${generated}
    COMMAND protobuf::protoc --proto_path=${PROJECT_SOURCE_DIR} --cpp_out=${generated} ${proto}
    DEPENDS ${PROJECT_SOURCE_DIR}/${proto}
    VERBATIM)
  add_library(allot_${name} STATIC ${stem}.cc ${stem}.h)
  add_library(allot::${name} ALIAS allot_${name})
  target_include_directories(allot_${name} SYSTEM PUBLIC ${generated})
  target_link_libraries(allot_${name} PUBLIC protobuf::libprotobuf)
  target_compile_features(allot_${name} PUBLIC cxx_std_20)
  set_target_properties(allot_${name} PROPERTIES UNITY_BUILD OFF)
  if(ALLOT_SANITIZE)
    target_compile_options(allot_${name} PRIVATE -fsanitize=${ALLOT_SANITIZE} -fno-omit-frame-pointer)
  endif()
endfunction()

# allot_precompile(NAME LINK lib… INCLUDE header…): a target whose precompiled header others use (allot_use_precompiled). They need
# the compile definitions of LINK and the flags of allot_flags.
function(allot_precompile name)
  cmake_parse_arguments(arg "" "" "LINK;INCLUDE" ${ARGN})
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/${name}.cc CONTENT "// Owns a precompiled header.\n")
  add_library(${name} OBJECT ${PROJECT_BINARY_DIR}/${name}.cc)
  target_link_libraries(${name} PRIVATE ${arg_LINK})
  target_precompile_headers(${name} PRIVATE ${arg_INCLUDE})
  allot_flags(${name})
  target_compile_options(${name} PRIVATE $<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>)  # for ccache
endfunction()

function(allot_use_precompiled target name)
  target_compile_options(${target} PRIVATE  # for ccache
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-fpch-preprocess>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:Clang>>:SHELL:-Xclang -fno-pch-timestamp>)
  target_precompile_headers(${target} REUSE_FROM ${name})
endfunction()

set(ALLOT_STANDARD_HEADERS
  <algorithm> <chrono> <filesystem> <fstream> <functional> <map> <optional> <random> <span> <string> <thread> <variant> <vector>)

function(allot_precompile_for_test target)
  if(ALLOT_PRECOMPILE STREQUAL "none")
    return()
  endif()
  if(NOT TARGET allot_test_headers)
    allot_precompile(allot_test_headers
      LINK spdlog::spdlog GTest::gmock nlohmann_json::nlohmann_json
      INCLUDE <gmock/gmock.h> <gtest/gtest.h> <spdlog/fmt/fmt.h> <spdlog/spdlog.h> ${ALLOT_STANDARD_HEADERS}
        ${PROJECT_SOURCE_DIR}/base/json.h)
    allot_test_flags(allot_test_headers)
  endif()
  allot_use_precompiled(${target} allot_test_headers)
endfunction()

# Only where compile time is all that counts, since a precompiled header hides the includes that a source lacks: another build of
# ./check compiles the same sources without it.
function(allot_precompile_for_product)
  if(NOT ALLOT_PRECOMPILE STREQUAL "all")
    return()
  endif()
  allot_precompile(allot_product_headers
    LINK spdlog::spdlog protobuf::libprotobuf nlohmann_json::nlohmann_json
    INCLUDE
      <google/protobuf/map_field_inl.h> <google/protobuf/message.h> <spdlog/fmt/fmt.h> <spdlog/spdlog.h>
      ${ALLOT_STANDARD_HEADERS} ${PROJECT_SOURCE_DIR}/base/json.h)
  foreach(target ${ARGN})
    allot_use_precompiled(allot_${target} allot_product_headers)
  endforeach()
endfunction()

# Tests are compiled for the compiler's time, not theirs. Under UBSan the code under test is instrumented and the tests
# themselves are not: that halves what they take to compile. AddressSanitizer sees both.
function(allot_test_flags target)
  if(ALLOT_SANITIZE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O0 -fno-sanitize=undefined>)
  else()
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # At -O1 GCC 12 warns of copies of string literals that it has not yet seen to be guarded by their length.
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds> $<$<COMPILE_LANGUAGE:CXX>:-Wno-stringop-overflow>)
    endif()
  endif()
endfunction()

# allot_test(NAME SOURCES a_test.cc… LINK lib… [LABELS unit|model|slow…] [TIMEOUT s] [RELEASE] [WHOLE]): one GoogleTest executable; each TEST
# is a CTest, or thirty of them are one where ALLOT_TESTS_TOGETHER is on (cmake/AddTestShards.cmake). Tests find the repository at ALLOT_SOURCE_DIR and the built tools in ALLOT_BIN_DIR.
#   RELEASE  its numbers depend on the optimiser, so that a build with ALLOT_TESTS=release has it, too. (That build leaves the
#            other torch-free tests to the build under sanitizers, ALLOT_TESTS=unit; see ./check.)
#   TORCH_FACING  it includes LibTorch's headers, which bring another fmt than the precompiled header has.
#   TIMEOUT  seconds that a test may take, 120 where none are given. What may take longest starts first, so that it is not alone at
#            the end.
#   WHOLE    one CTest for the executable: starting it takes longer than most of its tests.
function(allot_test name)
  cmake_parse_arguments(arg "RELEASE;WHOLE;TORCH_FACING" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LINK} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE ALLOT_SOURCE_DIR="${PROJECT_SOURCE_DIR}" ALLOT_BIN_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  allot_flags(${name})
  allot_test_flags(${name})
  if(NOT arg_TORCH_FACING)
    allot_precompile_for_test(${name})
  endif()
  if((ALLOT_TESTS STREQUAL "release" AND arg_LABELS STREQUAL "unit" AND NOT arg_RELEASE)
      OR (ALLOT_TESTS STREQUAL "unit" AND NOT arg_LABELS STREQUAL "unit"))
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
  elseif(arg_WHOLE)
    add_test(NAME ${name} COMMAND ${name} --gtest_output=xml:${CMAKE_BINARY_DIR}/tests/${name}.xml)
    set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} COST ${arg_TIMEOUT})
  elseif(ALLOT_TESTS_TOGETHER)
    set(include ${CMAKE_CURRENT_BINARY_DIR}/${name}_shards.cmake)
    file(CONFIGURE OUTPUT ${include} @ONLY CONTENT [=[
set(name "@name@")
set(executable "@CMAKE_BINARY_DIR@/tests/@name@")
set(labels "@arg_LABELS@")
set(timeout "@arg_TIMEOUT@")
set(results "@CMAKE_BINARY_DIR@/tests")
include("@PROJECT_SOURCE_DIR@/cmake/AddTestShards.cmake")
]=])
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${include})
  else()
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} COST ${arg_TIMEOUT})
  endif()
endfunction()
