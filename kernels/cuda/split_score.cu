#include "kernels/cuda/score_table.cuh"
#include "kernels/cuda/split_products.cuh"

namespace allot::kernels::cuda {
namespace {

template <int kHeadDim>
ScoreKernel split_score_kernel_of(int32_t head_tiles) {
  switch (head_tiles) {
    case 1:
      return make_score_kernel_of<SplitProducts<kHeadDim, 1>, ScoreUse::kDecode>();
    case 2:
      return make_score_kernel_of<SplitProducts<kHeadDim, 2>, ScoreUse::kDecode>();
    case 4:
      return make_score_kernel_of<SplitProducts<kHeadDim, 4>, ScoreUse::kDecode>();
    default:
      return {};
  }
}

}  // namespace

ScoreKernel split_score_kernel(int32_t head_dim, int32_t head_tiles) {
  return of_split_head_dim<ScoreKernel>(
      head_dim, [=]<int kHeadDim>(HeadDim<kHeadDim>) { return split_score_kernel_of<kHeadDim>(head_tiles); });
}

}  // namespace allot::kernels::cuda
