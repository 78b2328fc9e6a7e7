// LibTorch's CUDA part, which no target links: it is loaded at run time from the directory of this
// process's libtorch_cpu.so. So builds need neither it nor cuBLAS nor cuDNN, and machines without a GPU run
// the same programs.
#pragma once

namespace allot::model::cuda {

// Registers LibTorch's CUDA operators with its dispatcher; calls after the first do nothing. Stays loaded
// until the process ends. Throws NotFound with the file and the loader's reason.
void load_torch_cuda();

}  // namespace allot::model::cuda
