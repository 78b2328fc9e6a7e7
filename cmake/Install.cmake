# `cmake --install BUILD --prefix PREFIX`: the executables, what they need of LibTorch beside them, completion for bash and zsh,
# manual pages, config files, documentation and the systemd units. `--component allot` leaves out what runs models: no LibTorch. The
# installed tree can be moved or copied to another machine with the same Debian packages: its RUNPATHs are relative, but for
# the CUDA toolkit's folder, which comes last.
include_guard()
include(GNUInstallDirs)
set(libraries ${CMAKE_INSTALL_LIBDIR}/allot)

install(TARGETS allot RUNTIME COMPONENT allot)
install(FILES systemd/allot-aggregator.service systemd/allot-worker@.service DESTINATION lib/systemd/system COMPONENT allot)
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT allot)
install(DIRECTORY docs configs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT allot)
# Made by what is installed, so that they name the commands which this build has.
set(shell ${PROJECT_BINARY_DIR}/shell)
install(CODE "
  file(REMOVE_RECURSE \"${shell}\")
  file(MAKE_DIRECTORY \"${shell}/bash-completion/completions\" \"${shell}/zsh/site-functions\")
  foreach(words IN ITEMS \"completion;bash;OUTPUT_FILE;${shell}/bash-completion/completions/allot\"
          \"completion;zsh;OUTPUT_FILE;${shell}/zsh/site-functions/_allot\" \"man;--out;${shell}/man/man1\")
    execute_process(COMMAND \"$<TARGET_FILE:allot>\" \${words} COMMAND_ERROR_IS_FATAL ANY)
  endforeach()" COMPONENT allot)
install(DIRECTORY ${shell}/ DESTINATION ${CMAKE_INSTALL_DATADIR} COMPONENT allot)

if(ALLOT_WITH_TORCH)
  # Laid out as in the wheel, whose libraries find each other by paths relative to their own.
  cmake_path(GET ALLOT_TORCH_DIR PARENT_PATH site)
  set(wanted libtorch_cpu.so libc10.so libgomp.so.1)
  set(executables allot-model)
  if(ALLOT_WITH_CUDA)
    # Long prompts open libtorch_cuda.so. It needs the wheel's nvidia packages, which are copied where they are there.
    list(APPEND wanted libtorch_cuda.so libc10_cuda.so libtorch_nvshmem.so)
    list(APPEND executables allot-bench)
  endif()
  list(TRANSFORM wanted PREPEND ${ALLOT_TORCH_DIR}/lib/)
  install(FILES ${wanted} DESTINATION ${libraries}/torch/lib COMPONENT model)
  install(DIRECTORY ${site}/nvidia DESTINATION ${libraries} COMPONENT model FILES_MATCHING PATTERN "*.so*")
  install(TARGETS ${executables} RUNTIME COMPONENT model)
  # The PyTorch operators, for ALLOT_TORCH_LIBRARY (python/allot_attention).
  install(TARGETS allot_kernels_torch LIBRARY DESTINATION ${libraries} COMPONENT model)
  file(RELATIVE_PATH from_bin /prefix/${CMAKE_INSTALL_BINDIR} /prefix/${libraries})
  set(rpath "$ORIGIN/${from_bin}/torch/lib" "$ORIGIN/${from_bin}/nvidia/cu13/lib")
  if(ALLOT_WITH_CUDA)
    list(APPEND rpath ${CUDAToolkit_LIBRARY_DIR})  # cuBLAS of the toolkit, where the wheel's packages are not installed
  endif()
  set_target_properties(${executables} PROPERTIES INSTALL_RPATH "${rpath}")
  set_target_properties(allot_kernels_torch PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/torch/lib")
endif()
