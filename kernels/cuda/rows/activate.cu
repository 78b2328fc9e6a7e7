#include "kernels/cuda/rows/activation.cuh"
#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/quantized_row.cuh"
#include "kernels/cuda/rows/row_vectors.cuh"
#include "kernels/cuda/rows/validate_rows.h"
#include "kernels/fp8_cuda.h"
#include "kernels/rows_cuda.h"

namespace allot::kernels {
namespace cuda {
namespace {

constexpr uint32_t kActivateThreads = 256;

// blockIdx.x is the row, blockIdx.y the part of it.
template <class T, int N>
__global__ void __launch_bounds__(kActivateThreads) activate_and_multiply(ActivateAndMultiplyParams p) {
  begin_overlapped();
  const int64_t row = blockIdx.x;
  const int64_t i = (int64_t{blockIdx.y} * kActivateThreads + threadIdx.x) * N;
  if (i >= p.width) return;
  const T* const gate = static_cast<const T*>(p.gate_up) + row * 2 * p.width + i;
  float x[N], up[N];
  load_elements<T, N>(gate, x);
  load_elements<T, N>(gate + p.width, up);
#pragma unroll
  for (int j = 0; j < N; ++j) x[j] = activate(p.activation, x[j]) * up[j];
  store_elements<T, N>(static_cast<T*>(p.out) + row * p.width + i, x);
}

// Most vectors of a row that a thread keeps, in 16 bits; what is beyond is computed a second time.
constexpr int kMostKept = 7;

struct GateUp {
  uint4 gate, up;
};

// A block a row, of whose vectors a thread keeps kKept.
template <int kKept>
__global__ void __launch_bounds__(kMaxQuantizeThreads, 2)
    activate_and_quantize(ActivateAndMultiplyParams p, QuantizedRows quantized) {
  using T = __nv_bfloat16;
  constexpr int kN = kVector<T>;
  begin_overlapped();
  const int64_t row = blockIdx.x;
  const T* const gate = static_cast<const T*>(p.gate_up) + row * 2 * p.width;
  uint8_t* const bits = quantized.elements + row * p.width;
  const auto step = static_cast<int32_t>(blockDim.x) * kN;
  const int32_t begin = static_cast<int32_t>(threadIdx.x) * kN;
  const auto load = [&](int32_t i) {
    return GateUp{.gate = *reinterpret_cast<const uint4*>(gate + i),
                  .up = *reinterpret_cast<const uint4*>(gate + p.width + i)};
  };
  const auto compute = [&](const GateUp& raw) {
    float x[kN], up[kN];
    expand<T>(raw.gate, x);
    expand<T>(raw.up, up);
    uint32_t words[kN / 2];
#pragma unroll
    for (int j = 0; j < kN; j += 2)
      words[j / 2] =
          pack<T>(activate(p.activation, x[j]) * up[j], activate(p.activation, x[j + 1]) * up[j + 1]);
    return make_uint4(words[0], words[1], words[2], words[3]);
  };
  float largest = 0;
  const auto find_largest = [&](const uint4& raw) {
    float x[kN];
    expand<T>(raw, x);
#pragma unroll
    for (int j = 0; j < kN; ++j) largest = larger_magnitude(largest, x[j]);
  };
  uint4 kept[kKept];
  GateUp next = {};
  if (begin < p.width) next = load(begin);
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const GateUp raw = next;
    // A division is a branch, behind which no load is begun: so the next vector's comes before.
    if (k + 1 < kKept && begin + (k + 1) * step < p.width) next = load(begin + (k + 1) * step);
    if (begin + k * step < p.width) {
      kept[k] = compute(raw);
      find_largest(kept[k]);
    }
  }
  for (int32_t i = begin + kKept * step; i < p.width; i += step) find_largest(compute(load(i)));

  const Fp8Scale scale = fp8_scale(largest_of_block(largest));
  const auto give = [&](int32_t i, const uint4& raw) {
    float x[kN];
    expand<T>(raw, x);
    store_quantized(bits + i, x, scale);
  };
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    if (begin + k * step < p.width) give(begin + k * step, kept[k]);
  }
  for (int32_t i = begin + kKept * step; i < p.width; i += step) give(i, compute(load(i)));
  if (threadIdx.x == 0) quantized.scales[row] = scale.scale;
}

}  // namespace
}  // namespace cuda

void activate_and_multiply_cuda(const ActivateAndMultiplyParams& p, const DeviceLimits& limits,
                                CudaStream stream) {
  cuda::check(p);
  if (p.rows == 0) return;
  const bool aligned = cuda::aligned_to_vectors(p.width * size_of(p.dtype), p.gate_up, p.out);
  cuda::for_element(p.dtype, aligned, [&]<class T, int N>() {
    const uint32_t per_block = cuda::kActivateThreads * N;
    const uint32_t parts = (static_cast<uint32_t>(p.width) + per_block - 1) / per_block;
    cuda::launch_overlapped(
        cuda::activate_and_multiply<T, N>,
        {.rows = static_cast<uint32_t>(p.rows), .parts = parts, .threads = cuda::kActivateThreads}, limits,
        stream, p);
  });
}

void activate_and_multiply_quantized_cuda(const ActivateAndMultiplyParams& p, const QuantizedRows& out,
                                          const DeviceLimits& limits, CudaStream stream) {
  cuda::check(p, out);
  if (p.rows == 0) return;
  // As few vectors a thread as the row takes in a block, and no more threads than it then needs.
  const auto vectors = static_cast<uint32_t>(p.width / cuda::kVector<__nv_bfloat16>);
  const uint32_t rounds = (vectors + cuda::kMaxQuantizeThreads - 1) / cuda::kMaxQuantizeThreads;
  const cuda::RowGrid grid{.rows = static_cast<uint32_t>(p.rows),
                           .threads = ((vectors + rounds - 1) / rounds + 31) / 32 * 32};
  const auto launch = [&](auto kernel) { cuda::launch_overlapped(kernel, grid, limits, stream, p, out); };
  if (rounds <= 2) return launch(cuda::activate_and_quantize<2>);
  if (rounds <= 4) return launch(cuda::activate_and_quantize<4>);
  if (rounds <= 5) return launch(cuda::activate_and_quantize<5>);
  launch(cuda::activate_and_quantize<cuda::kMostKept>);
}

}  // namespace allot::kernels
