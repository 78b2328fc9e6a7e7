# The estimators: a row each folder under kernels/methods, with the structs of its method.h. Their order is that of the
# enumerators, of options and of --help. From it are made, in the build folder's kernels/methods:
#   estimators.h            the enumerators and the list of structs, for list.h
#   value_kernels.cuh       the templates of all CUDA value kernels
#   <folder>_<dtype>.cu     the kernels of a folder and dtype, compiled: a translation unit each, so that a build uses all cores
#   value_kernels.cc        which of them an estimator uses
set(methods
  exact:Exact
  targets:Iid,Strat,Sys
  tiled:Prop,Flash
  threshold:Threshold
  shared:Joint,Pooled,Level
  topk:Topk
)

set(method_files ${PROJECT_BINARY_DIR}/generated/kernels/methods)
set(method_templates ${CMAKE_CURRENT_LIST_DIR}/templates)
set(method_sources "")
set(method_cuda_sources ${method_files}/value_kernels.cc)
foreach(row IN LISTS methods)
  string(REPLACE ":" ";" row "${row}")
  list(GET row 0 folder)
  list(GET row 1 structs)
  string(REPLACE "," ";" structs "${structs}")
  string(APPEND includes "#include \"kernels/methods/${folder}/method.h\"\n")
  string(APPEND kernel_includes "#include \"kernels/methods/${folder}/value_kernel.cuh\"\n")
  foreach(struct IN LISTS structs)
    list(APPEND enumerators k${struct})
    list(APPEND structs_of_all methods::${struct})
    string(APPEND cases "    case Estimator::k${struct}:\n")
    string(APPEND definitions
      "cuda::ValueKernel ${struct}::cuda_kernel(DType dtype, int32_t head_dim, cuda::Workers workers) {\n"
      "  return of_dtype(dtype, cuda::${folder}_bfloat16, cuda::${folder}_float16)(head_dim, workers);\n}\n")
  endforeach()
  string(APPEND cases "      return ${folder}_kernel<T, kHeadDim>(workers);\n")
  foreach(dtype bfloat16:__nv_bfloat16 float16:__half)
    string(REPLACE ":" ";" dtype "${dtype}")
    list(GET dtype 0 dtype_name)
    list(GET dtype 1 dtype_type)
    string(APPEND declarations "ValueKernel ${folder}_${dtype_name}(int32_t head_dim, Workers workers);\n")
    set(source ${method_files}/${folder}_${dtype_name}.cu)
    configure_file(${method_templates}/value_kernel.cu.in ${source} @ONLY)
    list(APPEND method_cuda_sources ${source})
  endforeach()
  if(EXISTS ${CMAKE_CURRENT_LIST_DIR}/${folder}/method.cc)
    list(APPEND method_sources methods/${folder}/method.cc)
  endif()
endforeach()
list(JOIN enumerators ", " enumerators)
list(JOIN structs_of_all ", " structs_of_all)
foreach(file estimators.h value_kernels.cuh value_kernels.cc)
  configure_file(${method_templates}/${file}.in ${method_files}/${file} @ONLY)
endforeach()
