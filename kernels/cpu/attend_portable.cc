// Kernels for any x86-64 processor, and for other architectures.
#include "kernels/cpu/baseline_headers.h"
#include "kernels/cpu/make_kernels.h"

namespace allot::kernels::cpu {

const Kernels kPortableKernels = MakeKernels<GenericVec<4>>::kTable;

}  // namespace allot::kernels::cpu
