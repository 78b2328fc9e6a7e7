# `cmake --install BUILD --prefix PREFIX`: the executables, what they need of LibTorch beside them, and the systemd units. The
# installed tree can be moved or copied to another machine with the same Debian packages: its RUNPATHs are relative.
include_guard()
include(GNUInstallDirs)
set(libraries ${CMAKE_INSTALL_LIBDIR}/allot)

install(TARGETS allot RUNTIME)
install(FILES systemd/allot-aggregator.service systemd/allot-worker@.service DESTINATION lib/systemd/system)

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
  install(FILES ${wanted} DESTINATION ${libraries}/torch/lib)
  install(DIRECTORY ${site}/nvidia DESTINATION ${libraries} FILES_MATCHING PATTERN "*.so*")
  install(TARGETS ${executables} RUNTIME)
  file(RELATIVE_PATH from_bin /prefix/${CMAKE_INSTALL_BINDIR} /prefix/${libraries})
  set(rpath "$ORIGIN/${from_bin}/torch/lib" "$ORIGIN/${from_bin}/nvidia/cu13/lib")
  if(ALLOT_WITH_CUDA)
    list(APPEND rpath ${CUDAToolkit_LIBRARY_DIR})  # cuBLAS of the toolkit, where the wheel's packages are not installed
  endif()
  set_target_properties(${executables} PROPERTIES INSTALL_RPATH "${rpath}")
endif()
