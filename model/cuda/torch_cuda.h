// LibTorch's CUDA part, which no target links: it is loaded at run time from where the libtorch_cpu.so of
// this process lies, so that builds need neither it nor cuBLAS and cuDNN, and machines without a GPU run
// the same programs.
#pragma once

namespace allot::model::cuda {

// Registers LibTorch's CUDA operators with its dispatcher; calls after the first do nothing. Stays loaded
// until the process ends. Throws NotFound with the file and the loader's reason.
void load_torch_cuda();

}  // namespace allot::model::cuda
