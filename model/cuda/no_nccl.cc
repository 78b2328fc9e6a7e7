// In place of nccl.cc where the build found no nccl.h.
#include "base/error.h"
#include "model/cuda/nccl.h"

namespace allot::model::cuda {

struct NcclGroup::Impl {};

NcclGroup::NcclGroup(std::span<const int> /*devices*/) {
  throw Unsupported(
      "a model over several devices needs NCCL, and this build found no nccl.h; install NCCL's headers "
      "(libnccl-dev, or pip install nvidia-nccl-cu13) and configure again, with -DALLOT_NCCL_INCLUDE=FOLDER "
      "where they lie in an unusual place");
}
NcclGroup::~NcclGroup() = default;
Collective& NcclGroup::of_rank(int32_t /*rank*/) {
  throw Unsupported("this build has no NCCL");
}
void NcclGroup::abort() {}

}  // namespace allot::model::cuda
