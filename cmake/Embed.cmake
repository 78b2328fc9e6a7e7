# allot_embed(TARGET NAMESPACE NAME=FILE…): texts compiled into TARGET, each as `extern const std::string_view NAME` in NAMESPACE.
# Files (HTML, CSS, JavaScript) stay files for editors and linters. They must not hold )embedded".
include_guard()

function(allot_embed target namespace)
  set(text "#include <string_view>\n\nnamespace ${namespace} {\n")
  foreach(pair IN LISTS ARGN)
    string(REPLACE "=" ";" pair "${pair}")
    list(GET pair 0 name)
    list(GET pair 1 file)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    file(READ ${file} content)
    string(APPEND text "extern const std::string_view ${name};\nconst std::string_view ${name} = R\"embedded(${content})embedded\";\n")
  endforeach()
  string(APPEND text "}  // namespace ${namespace}\n")
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${target}_embedded.cc CONTENT "@text@" @ONLY)
  target_sources(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/${target}_embedded.cc)
endfunction()
