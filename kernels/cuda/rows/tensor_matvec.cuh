// Products of up to 16 rows on tensor cores, which multiply 16 rows (or 8, and zeros) of the input with 8
// features at a time: so the arithmetic takes no longer than the reading of the weights. The order of
// in_features inside a product is free, so a lane reads 16 contiguous bytes of a weight and the input's
// elements beside them, several products' worth.
//
// A block computes the same few features of every row. Its warps divide in_features among themselves: warp w
// takes runs w, w + warps, w + 2 warps and so on, of a few chunks each, a chunk being what four lanes read of
// a feature. Partial sums are added over the warps in a fixed order.
//
// A format of weights says what 16 bytes hold:
//   Params                            MatvecParams, or with the fields of it that the kernel reads
//   Element                           of input, bias and out
//   kVector                           elements of 16 bytes of a weight
//   pairs(const uint4&, i)            elements 4i to 4i + 3 of them, as the tensor cores take them
//   scaled(sum, params, feature)      what a sum of products stands for
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/row_vectors.cuh"
#include "kernels/cuda/rows/weight_loads.cuh"

namespace allot::kernels::cuda {

inline constexpr int kMaxTensorWarps = 8;

// How a block divides its work.
template <int kHalvesOfRows, int kTilesOfFeatures, int kChunksOfRun, int kBlocksThatFit>
struct TensorShape {
  // Of a product's 16 rows: 1 takes an input of at most 8.
  static constexpr int kHalves = kHalvesOfRows;
  static constexpr int kTiles = kTilesOfFeatures;  // of 8 features
  static constexpr int kFeatures = 8 * kTiles;
  static constexpr int kChunks = kChunksOfRun;    // of a run, all in flight
  static constexpr int kBlocks = kBlocksThatFit;  // on a multiprocessor, by their registers
};

struct WeightPairs {
  uint32_t low, high;  // two elements each
};

__device__ __forceinline__ uint32_t word_of(const uint4& vector, int i) {
  return i == 0 ? vector.x : i == 1 ? vector.y : i == 2 ? vector.z : vector.w;
}

// As many elements of the input as a vector of weights has.
template <int kElements>
struct InputVector {
  static constexpr int kVectors = kElements / 8;
  uint4 vectors[kVectors];

  __device__ __forceinline__ uint32_t word(int i) const { return word_of(vectors[i / 4], i % 4); }
};

// Grid: a block for every kFeatures features; blockDim.x is a multiple of 32, at most 32 kMaxTensorWarps.
template <class Format, class Shape>
__global__ void __launch_bounds__(32 * kMaxTensorWarps, Shape::kBlocks)
    tensor_matvec(const __grid_constant__ typename Format::Params p) {
  using T = typename Format::Element;
  using Input = InputVector<Format::kVector>;
  constexpr int kHalves = Shape::kHalves, kTiles = Shape::kTiles, kChunks = Shape::kChunks;
  constexpr int kFeatures = Shape::kFeatures, kVector = Format::kVector;
  constexpr int kChunk = 4 * kVector, kRun = kChunks * kChunk;
  constexpr int kBytes = 16 / kVector;  // of an element of a weight
  let_dependents_start();
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t warp = thread / 32, lane = thread % 32, warps = static_cast<int32_t>(blockDim.x) / 32;
  const int32_t first_feature = static_cast<int32_t>(blockIdx.x) * kFeatures;
  // Beyond the last feature the last one is computed again, and not stored.
  const auto weights_of = [&](int32_t feature) {
    return static_cast<const uint8_t*>(static_cast<const void*>(p.weight)) +
           int64_t{min(first_feature + feature, p.out_features - 1)} * p.in_features * kBytes;
  };
  const uint8_t* weight[kTiles];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) weight[tile] = weights_of(8 * tile + lane / 4);
  const uint64_t policy = read_once();
  uint4 weights[kChunks][kTiles];
  // Where this lane's elements of the chunk begin.
  const auto place = [&](int32_t run, int chunk) { return run * kRun + chunk * kChunk + lane % 4 * kVector; };
  const auto load = [&](int32_t run, int chunk) {
    const int32_t at = place(run, chunk);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      weights[chunk][tile] =
          at < p.in_features
              ? load_weights(reinterpret_cast<const uint4*>(weight[tile] + int64_t{at} * kBytes), policy)
              : make_uint4(0, 0, 0, 0);
    }
  };
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) load(warp, chunk);
  // What the first run's registers cannot hold waits in L2 for the predecessor's end: the second run. A large
  // product reads at the memory's full rate from its first blocks on, and is held up by such requests.
  constexpr int kLineElements = 128 / kBytes, kLines = kRun / kLineElements * kFeatures;
  constexpr int64_t kLargeBytes = int64_t{64} << 20;
  const int32_t ahead = (warps + warp) * kRun + lane / kFeatures * kLineElements;
  static_assert(kLines <= 32, "a lane asks for a line at most");
  if (lane < kLines && ahead < p.in_features &&
      int64_t{p.out_features} * p.in_features * kBytes < kLargeBytes)
    prefetch(weights_of(lane % kFeatures) + int64_t{ahead} * kBytes);

  wait_for_predecessor();
  const auto load_input = [&](int32_t row, int32_t at) {
    Input input = {};
    if (row >= p.rows || at >= p.in_features) return input;
    const auto* const elements =
        reinterpret_cast<const uint4*>(static_cast<const T*>(p.input) + int64_t{row} * p.in_features + at);
#pragma unroll
    for (int i = 0; i < Input::kVectors; ++i) input.vectors[i] = elements[i];
    return input;
  };
  float sums[kTiles][4] = {};  // of two rows and two features each
#pragma unroll 1
  for (int32_t run = warp; run * kRun < p.in_features; run += warps) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int32_t at = place(run, chunk);
      const Input low = load_input(lane / 4, at);
      const Input high = kHalves == 1 ? Input{} : load_input(8 + lane / 4, at);
#pragma unroll
      for (int i = 0; i < kVector / 4; ++i) {
        const uint4 rows = {low.word(2 * i), high.word(2 * i), low.word(2 * i + 1), high.word(2 * i + 1)};
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const WeightPairs pairs = Format::pairs(weights[chunk][tile], i);
          multiply_accumulate<T>(sums[tile], rows, pairs.low, pairs.high);
        }
      }
      load(run + warps, chunk);
    }
  }

  constexpr int kRows = 8 * kHalves;
  __shared__ float partial[kMaxTensorWarps][kRows][kFeatures];
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
    sum = Format::scaled(sum, p, feature);
    if (p.bias != nullptr) sum += as_float(static_cast<const T*>(p.bias)[feature]);
    static_cast<T*>(p.out)[row * p.out_stride + feature] = rounded<T>(sum);
  }
}

template <class Format, class Shape>
void launch_tensor_matvec(const typename Format::Params& p, const DeviceLimits& limits, CudaStream stream) {
  constexpr int32_t kRun = Shape::kChunks * 4 * Format::kVector;
  const auto parts = [](int32_t of, int32_t size) { return (of + size - 1) / size; };
  const RowGrid grid{
      .rows = static_cast<uint32_t>(parts(p.out_features, Shape::kFeatures)),
      .threads = 32 * static_cast<uint32_t>(std::min(parts(p.in_features, kRun), kMaxTensorWarps))};
  launch_overlapped(tensor_matvec<Format, Shape>, grid, limits, stream, p);
}

}  // namespace allot::kernels::cuda
