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
  switch (head_dim) {
    case 64:
      return split_score_kernel_of<64>(head_tiles);
    case 128:
      return split_score_kernel_of<128>(head_tiles);
    default:
      return {};
  }
}

}  // namespace allot::kernels::cuda
