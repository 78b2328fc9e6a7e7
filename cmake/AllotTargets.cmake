# Three functions give every target the same language level, warnings and layout.
include_guard()

function(allot_flags target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor>)
  if(ALLOT_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
  if(ALLOT_SANITIZE)
    # GCC 12 sees uninitialised members inside std::function (std::regex) once sanitizers are on.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
    target_compile_options(${target} PUBLIC -fsanitize=${ALLOT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    target_link_options(${target} PUBLIC -fsanitize=${ALLOT_SANITIZE})
  endif()
endfunction()

# allot_library(NAME SOURCES a.cc… [PUBLIC lib…] [PRIVATE lib…]): the library of a folder, linked as allot::NAME.
function(allot_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(allot_${name} STATIC ${arg_SOURCES})
  add_library(allot::${name} ALIAS allot_${name})
  target_include_directories(allot_${name} PUBLIC ${PROJECT_SOURCE_DIR})
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
  if(ALLOT_SANITIZE)
    target_compile_options(allot_${name} PRIVATE -fsanitize=${ALLOT_SANITIZE} -fno-omit-frame-pointer)
  endif()
endfunction()

# allot_test(NAME SOURCES a_test.cc… LINK lib… [LABELS unit|model|slow…]): one GoogleTest executable; each TEST is a CTest.
# Tests find the repository at ALLOT_SOURCE_DIR and the built tools in ALLOT_BIN_DIR.
function(allot_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
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
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
endfunction()
