# LibTorch from the PyPI wheel, unpacked by ./setup into .deps/site. Its own CMake files want a CUDA toolkit and probe
# for a GPU even where only the CPU part is linked, so the two libraries used here are declared directly. The wheel's
# RPATH finds libcupti and libcudart in .deps/site/nvidia.
include_guard()
set(ALLOT_TORCH_DIR ${PROJECT_SOURCE_DIR}/.deps/site/torch CACHE PATH "Folder 'torch' of the unpacked wheel")
foreach(needed IN ITEMS include/ATen/ATen.h lib/libtorch_cpu.so lib/libc10.so)
  if(NOT EXISTS ${ALLOT_TORCH_DIR}/${needed})
    message(FATAL_ERROR "LibTorch is incomplete: ${ALLOT_TORCH_DIR}/${needed} does not exist. Run ./setup, which unpacks torch 2.11.0, "
      "or set ALLOT_TORCH_DIR to the folder 'torch' of an installed wheel, or configure with -DALLOT_WITH_TORCH=OFF to build without the model runtime.")
  endif()
endforeach()
add_library(torch_c10 SHARED IMPORTED)
set_target_properties(torch_c10 PROPERTIES IMPORTED_LOCATION ${ALLOT_TORCH_DIR}/lib/libc10.so)
add_library(torch_cpu SHARED IMPORTED)
set_target_properties(torch_cpu PROPERTIES
  IMPORTED_LOCATION ${ALLOT_TORCH_DIR}/lib/libtorch_cpu.so
  INTERFACE_INCLUDE_DIRECTORIES "${ALLOT_TORCH_DIR}/include;${ALLOT_TORCH_DIR}/include/torch/csrc/api/include"
  INTERFACE_LINK_LIBRARIES torch_c10)
add_library(allot::torch_cpu ALIAS torch_cpu)
