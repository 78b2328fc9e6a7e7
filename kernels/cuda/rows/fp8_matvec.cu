// Tensor cores multiply 16 rows (or 8, and zeros) of the input with 8 features at a time: with a weight's
// conversion from 8 bits the arithmetic of a product would otherwise take longer than its bytes from four
// rows on. The order of in_features inside a product is free, so a lane reads 16 contiguous bytes of a weight
// and the input's elements beside them, four products' worth.
//
// A block computes the same few features of every row. Its warps divide in_features among themselves: warp w
// takes runs w, w + warps, w + 2 warps and so on, of a few chunks of 64 elements each. Partial sums are added
// over the warps in a fixed order.
#include <algorithm>

#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/row_vectors.cuh"
#include "kernels/cuda/rows/validate_rows.h"
#include "kernels/cuda/rows/weight_loads.cuh"
#include "kernels/fp8_cuda.h"

namespace allot::kernels {
namespace cuda {
namespace {

constexpr int kFp8Vector = 16;             // elements of a lane's 16 bytes
constexpr int kFp8Chunk = 4 * kFp8Vector;  // elements of a row that four lanes read
constexpr int kMaxFp8Warps = 8;

// How a block divides its work, measured on an H100 for products of Llama 3.1 8B, one after another and with
// small kernels between them.
template <int kHalvesOfRows, int kTilesOfFeatures, int kChunksOfRun, int kBlocksThatFit>
struct Fp8Shape {
  // Of a product's 16 rows: 1 takes an input of at most 8.
  static constexpr int kHalves = kHalvesOfRows;
  static constexpr int kTiles = kTilesOfFeatures;  // of 8 features
  static constexpr int kFeatures = 8 * kTiles;
  static constexpr int kChunks = kChunksOfRun;  // of a run, all in flight
  static constexpr int kRun = kChunks * kFp8Chunk;
  static constexpr int kBlocks = kBlocksThatFit;  // on a multiprocessor, by their registers
};
using Fp8FewRows = Fp8Shape<1, 1, 4, 4>;
using Fp8MoreRows = Fp8Shape<2, 2, 2, 3>;

struct WeightPairs {
  uint32_t low, high;  // two elements each
};

// Four weights of 8 bits as bfloat16, exactly.
__device__ __forceinline__ WeightPairs widen(uint32_t weights) {
  // Exponent and fraction go to the low end of bfloat16's exponent and the high end of its fraction. That is
  // the number times 2^(7 - 127), subnormal ones included.
  const auto pair = [](uint32_t bytes) {  // of weights, in the upper half of each element
    const uint32_t bits = (bytes & 0x80008000u) | ((bytes >> 4) & 0x07F007F0u);
    const __nv_bfloat16 factor = __ushort_as_bfloat16(0x7B80);  // 2^120
    const __nv_bfloat162 wide =
        __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&bits), __halves2bfloat162(factor, factor));
    return *reinterpret_cast<const uint32_t*>(&wide);
  };
  return {pair(__byte_perm(weights, 0, 0x1404)), pair(__byte_perm(weights, 0, 0x3424))};
}

struct InputVector {
  uint4 first, second;  // 16 elements

  __device__ __forceinline__ uint32_t word(int i) const {
    const uint4& half = i < 4 ? first : second;
    return i % 4 == 0 ? half.x : i % 4 == 1 ? half.y : i % 4 == 2 ? half.z : half.w;
  }
};

// Grid: a block for every kFeatures features.
template <class Shape>
__global__ void __launch_bounds__(32 * kMaxFp8Warps, Shape::kBlocks)
    fp8_matvec(const __grid_constant__ Fp8MatvecParams p) {
  constexpr int kHalves = Shape::kHalves, kTiles = Shape::kTiles, kChunks = Shape::kChunks;
  constexpr int kFeatures = Shape::kFeatures, kRun = Shape::kRun;
  let_dependents_start();
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t warp = thread / 32, lane = thread % 32, warps = static_cast<int32_t>(blockDim.x) / 32;
  const int32_t first_feature = static_cast<int32_t>(blockIdx.x) * kFeatures;
  // Beyond the last feature the last one is computed again, and not stored.
  const auto weights_of = [&](int32_t feature) {
    return p.weight + int64_t{min(first_feature + feature, p.out_features - 1)} * p.in_features;
  };
  const uint8_t* weight[kTiles];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) weight[tile] = weights_of(8 * tile + lane / 4);
  const uint64_t policy = read_once();
  uint4 weights[kChunks][kTiles];
  // Where this lane's elements of the chunk begin.
  const auto place = [&](int32_t run, int chunk) {
    return run * kRun + chunk * kFp8Chunk + lane % 4 * kFp8Vector;
  };
  const auto load = [&](int32_t run, int chunk) {
    const int32_t at = place(run, chunk);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      weights[chunk][tile] = at < p.in_features
                                 ? load_weights(reinterpret_cast<const uint4*>(weight[tile] + at), policy)
                                 : make_uint4(0, 0, 0, 0);
    }
  };
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) load(warp, chunk);
  // What the first run's registers cannot hold waits in L2 for the predecessor's end: the second run.
  constexpr int kLineBytes = 128, kLines = kRun / kLineBytes * kFeatures;
  const int32_t ahead = (warps + warp) * kRun + lane / kFeatures * kLineBytes;
  static_assert(kLines <= 32, "a lane asks for a line at most");
  if (lane < kLines && ahead < p.in_features) prefetch(weights_of(lane % kFeatures) + ahead);

  wait_for_predecessor();
  const auto load_input = [&](int32_t row, int32_t at) {
    const auto* const elements = reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p.input) +
                                                                int64_t{row} * p.in_features + at);
    return row < p.rows && at < p.in_features ? InputVector{elements[0], elements[1]} : InputVector{};
  };
  float sums[kTiles][4] = {};  // of two rows and two features each
#pragma unroll 1
  for (int32_t run = warp; run * kRun < p.in_features; run += warps) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int32_t at = place(run, chunk);
      const InputVector low = load_input(lane / 4, at);
      const InputVector high = kHalves == 1 ? InputVector{} : load_input(8 + lane / 4, at);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint4 rows = {low.word(2 * i), high.word(2 * i), low.word(2 * i + 1), high.word(2 * i + 1)};
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const uint4& vector = weights[chunk][tile];
          const WeightPairs pairs = widen(i == 0   ? vector.x
                                          : i == 1 ? vector.y
                                          : i == 2 ? vector.z
                                                   : vector.w);
          multiply_accumulate<__nv_bfloat16>(sums[tile], rows, pairs.low, pairs.high);
        }
      }
      load(run + warps, chunk);
    }
  }

  constexpr int kRows = 8 * kHalves;
  __shared__ float partial[kMaxFp8Warps][kRows][kFeatures];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 2 * kHalves; ++i)
      partial[warp][8 * (i / 2) + lane / 4][8 * tile + lane % 4 * 2 + i % 2] = sums[tile][i];
  }
  __syncthreads();
  const int32_t outs = static_cast<int32_t>(p.rows) * kFeatures;
  for (int32_t i = thread; i < outs; i += 32 * warps) {
    const int32_t row = i / kFeatures, feature = first_feature + i % kFeatures;
    if (feature >= p.out_features) continue;
    float sum = 0;
    for (int32_t w = 0; w < warps; ++w) sum += partial[w][row][i % kFeatures];
    sum *= p.weight_scales[feature];
    if (p.bias != nullptr) sum += as_float(static_cast<const __nv_bfloat16*>(p.bias)[feature]);
    static_cast<__nv_bfloat16*>(p.out)[row * p.out_stride + feature] = rounded<__nv_bfloat16>(sum);
  }
}

template <class Shape>
void launch_fp8_matvec(const Fp8MatvecParams& p, const DeviceLimits& limits, CudaStream stream) {
  const auto parts = [](int32_t of, int32_t size) { return (of + size - 1) / size; };
  const RowGrid grid{
      .rows = static_cast<uint32_t>(parts(p.out_features, Shape::kFeatures)),
      .threads = 32 * static_cast<uint32_t>(std::min(parts(p.in_features, Shape::kRun), kMaxFp8Warps))};
  launch_overlapped(fp8_matvec<Shape>, grid, limits, stream, p);
}

}  // namespace
}  // namespace cuda

bool fp8_matvec_supports(int64_t rows, int32_t in_features) {
  return rows >= 0 && rows <= kMaxFp8MatvecRows && in_features >= cuda::kFp8Vector &&
         in_features % cuda::kFp8Vector == 0;
}

void fp8_matvec_cuda(const Fp8MatvecParams& p, const DeviceLimits& limits, CudaStream stream) {
  cuda::check(p);
  if (p.rows == 0) return;
  if (p.rows <= 8) {
    cuda::launch_fp8_matvec<cuda::Fp8FewRows>(p, limits, stream);
  } else {
    cuda::launch_fp8_matvec<cuda::Fp8MoreRows>(p, limits, stream);
  }
}

}  // namespace allot::kernels
