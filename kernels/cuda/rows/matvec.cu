// A block computes kFeatures features of every row. Its threads divide in_features among themselves: thread t
// multiplies the vectors (of 8 elements) t, t + threads, t + 2 threads and so on, for all the block's
// features, so that each element of the input is read once for all of them. Partial sums are added over the
// lanes of a warp, then over the warps, in a fixed order.
//
// Weights go from memory to registers, kBatch * kFeatures vectors a lane in flight: about 100 KB on each
// multiprocessor, more than twice what bandwidth times latency asks for, since a lane's loads pause while
// its block starts and ends. Blocks are short and many, which balances multiprocessors that differ in how
// fast they read and lets the blocks of the next kernel in, one by one, where this one's run out.
#include <algorithm>

#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/row_vectors.cuh"
#include "kernels/cuda/rows/validate_rows.h"
#include "kernels/cuda/rows/weight_loads.cuh"
#include "kernels/matvec_cuda.h"

namespace allot::kernels {
namespace cuda {
namespace {

constexpr int kElements = 8;  // of a vector of 16 bytes
constexpr int kFeatures = 4;
constexpr int kBatch = 2;  // vectors of each feature in flight a lane
constexpr uint32_t kMaxMatvecThreads = 256;
constexpr int kMaxMatvecWarps = kMaxMatvecThreads / 32;
// A batch of a warp, kBatch * kFeatures times 512 contiguous bytes, is this many lines of memory.
constexpr int kLineBytes = 128;
constexpr int kLinesOfVectors = 32 * 16 / kLineBytes;
static_assert(kBatch * kFeatures * kLinesOfVectors == 32, "a lane asks for one line of the next batch");

// sums[row][feature] += the products of a vector of each, element after element.
template <class T, int kRows>
__device__ __forceinline__ void multiply(const uint4 (&input)[kRows], const uint4 (&weights)[kFeatures],
                                         float (&sums)[kRows][kFeatures]) {
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const auto pair = [&](const uint4& vector) {
      return unpack<T>(word == 0 ? vector.x : word == 1 ? vector.y : word == 2 ? vector.z : vector.w);
    };
    float2 x[kRows];
#pragma unroll
    for (int row = 0; row < kRows; ++row) x[row] = pair(input[row]);
#pragma unroll
    for (int feature = 0; feature < kFeatures; ++feature) {
      const float2 w = pair(weights[feature]);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        sums[row][feature] = fmaf(w.y, x[row].y, fmaf(w.x, x[row].x, sums[row][feature]));
      }
    }
  }
}

// Grid: a block for every kFeatures features; blockDim.x is a multiple of 32.
//
// Registers for two or three blocks of 256 threads a multiprocessor: more would cost loads in flight.
template <class T, int kRows>
__global__ void __launch_bounds__(kMaxMatvecThreads, kRows <= 2 ? 3 : 2)
    matvec(const __grid_constant__ MatvecParams p) {
  // The next kernel's blocks come in when the last ones of this grid have started; they all wait for its end
  // before they touch what it writes.
  let_dependents_start();
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto threads = static_cast<int32_t>(blockDim.x);
  const int warp = thread / 32, lane = thread % 32;
  const int32_t vectors = p.in_features / kElements;
  const int32_t first_feature = static_cast<int32_t>(blockIdx.x) * kFeatures;
  // Beyond the last feature the last one is computed again, and not stored.
  const auto weights_of = [&](int feature) {
    return static_cast<const uint4*>(p.weight) +
           int64_t{min(first_feature + feature, p.out_features - 1)} * vectors;
  };
  const uint4* weight[kFeatures];
#pragma unroll
  for (int feature = 0; feature < kFeatures; ++feature) weight[feature] = weights_of(feature);
  const uint64_t policy = read_once();
  uint4 weights[kBatch][kFeatures] = {};
  const auto load = [&](int i, int32_t vector) {
    if (vector >= vectors) return;
#pragma unroll
    for (int feature = 0; feature < kFeatures; ++feature) {
      weights[i][feature] = load_weights(weight[feature] + vector, policy);
    }
  };
#pragma unroll
  for (int i = 0; i < kBatch; ++i) load(i, thread + i * threads);
  // What the first batch's registers cannot hold waits in L2 for the predecessor's end: the second batch.
  const int chunk = lane / kLinesOfVectors;
  const int32_t ahead = (kBatch + chunk / kFeatures) * threads + warp * 32 +
                        lane % kLinesOfVectors * (kLineBytes / static_cast<int>(sizeof(uint4)));
  if (ahead < vectors) prefetch(weights_of(chunk % kFeatures) + ahead);

  wait_for_predecessor();
  const auto* const input = static_cast<const uint4*>(p.input);
  float sums[kRows][kFeatures] = {};
#pragma unroll 1
  for (int32_t begin = thread; begin < vectors; begin += kBatch * threads) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int32_t vector = begin + i * threads;
      if (vector < vectors) {
        uint4 x[kRows];
#pragma unroll
        for (int row = 0; row < kRows; ++row) x[row] = input[row * vectors + vector];
        multiply<T>(x, weights[i], sums);
      }
      load(i, vector + kBatch * threads);
    }
  }

  constexpr int kSums = kRows * kFeatures;
  __shared__ float partial[kMaxMatvecWarps][kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    float sum = sums[i / kFeatures][i % kFeatures];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(kFullWarp, sum, offset);
    if (lane == i) partial[warp][i] = sum;
  }
  __syncthreads();
  const int32_t feature = first_feature + thread % kFeatures;
  if (thread >= kSums || feature >= p.out_features) return;
  float sum = 0;
  for (int w = 0; w < threads / 32; ++w) sum += partial[w][thread];
  if (p.bias != nullptr) sum += as_float(static_cast<const T*>(p.bias)[feature]);
  static_cast<T*>(p.out)[thread / kFeatures * p.out_stride + feature] = rounded<T>(sum);
}

template <class T>
void launch_matvec(const MatvecParams& p, const RowGrid& grid, const DeviceLimits& limits,
                   CudaStream stream) {
  static_assert(kMaxMatvecRows == 4);
  switch (p.rows) {
    case 1:
      return launch_overlapped(matvec<T, 1>, grid, limits, stream, p);
    case 2:
      return launch_overlapped(matvec<T, 2>, grid, limits, stream, p);
    case 3:
      return launch_overlapped(matvec<T, 3>, grid, limits, stream, p);
    default:
      return launch_overlapped(matvec<T, 4>, grid, limits, stream, p);
  }
}

// Threads of a block: those that have work, 128 where that fills the device, else up to twice as many.
uint32_t threads_of_block(const MatvecParams& p, uint32_t blocks, const DeviceLimits& limits) {
  constexpr uint32_t kOrdinary = 128;
  constexpr uint32_t kBlocksThatFill = 4;  // a multiprocessor
  const uint32_t most = blocks < kBlocksThatFill * static_cast<uint32_t>(limits.multiprocessors)
                            ? kMaxMatvecThreads
                            : kOrdinary;
  const uint32_t vectors = static_cast<uint32_t>(p.in_features) / kElements;
  return std::clamp((vectors / kBatch + 31) / 32 * 32, 32u, most);
}

}  // namespace
}  // namespace cuda

bool matvec_supports(int64_t rows, int32_t in_features, DType dtype) {
  return rows >= 0 && rows <= kMaxMatvecRows && in_features >= cuda::kElements &&
         in_features % cuda::kElements == 0 && (dtype == DType::kBFloat16 || dtype == DType::kFloat16);
}

void matvec_cuda(const MatvecParams& p, const DeviceLimits& limits, CudaStream stream) {
  cuda::check(p);
  if (p.rows == 0) return;
  const uint32_t blocks = (static_cast<uint32_t>(p.out_features) + cuda::kFeatures - 1) / cuda::kFeatures;
  const cuda::RowGrid grid{.rows = blocks, .threads = cuda::threads_of_block(p, blocks, limits)};
  if (p.dtype == DType::kBFloat16) {
    cuda::launch_matvec<__nv_bfloat16>(p, grid, limits, stream);
  } else {
    cuda::launch_matvec<__half>(p, grid, limits, stream);
  }
}

}  // namespace allot::kernels
