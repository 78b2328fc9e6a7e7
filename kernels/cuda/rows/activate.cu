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

__device__ __forceinline__ float activate(Activation activation, float x) {
  if (activation == Activation::kReluSquared) {
    x = x < 0 ? 0 : x;  // NaN stays
    return x * x;
  }
  return x / (1 + fast_exp2(x * -kLog2E));
}

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

// Vectors of a row that a thread keeps, in 16 bits; what is beyond is computed a second time.
constexpr int kKeptOfGate = 8;

// A block a row.
__global__ void __launch_bounds__(kMaxQuantizeThreads)
    activate_and_quantize(ActivateAndMultiplyParams p, QuantizedRows quantized) {
  using T = __nv_bfloat16;
  constexpr int kN = kVector<T>;
  begin_overlapped();
  const int64_t row = blockIdx.x;
  const T* const gate = static_cast<const T*>(p.gate_up) + row * 2 * p.width;
  uint8_t* const bits = quantized.elements + row * p.width;
  const auto step = static_cast<int32_t>(blockDim.x) * kN;
  const int32_t begin = static_cast<int32_t>(threadIdx.x) * kN;
  const auto compute = [&](int32_t i) {
    float x[kN], up[kN];
    load_elements<T, kN>(gate + i, x);
    load_elements<T, kN>(gate + p.width + i, up);
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
  uint4 kept[kKeptOfGate];
#pragma unroll
  for (int k = 0; k < kKeptOfGate; ++k) {
    if (begin + k * step < p.width) kept[k] = compute(begin + k * step);
  }
#pragma unroll
  for (int k = 0; k < kKeptOfGate; ++k) {
    if (begin + k * step < p.width) find_largest(kept[k]);
  }
  for (int32_t i = begin + kKeptOfGate * step; i < p.width; i += step) find_largest(compute(i));

  const Fp8Scale scale = fp8_scale(largest_of_block(largest));
  const auto give = [&](int32_t i, const uint4& raw) {
    float x[kN];
    expand<T>(raw, x);
    store_quantized(bits + i, x, scale);
  };
#pragma unroll
  for (int k = 0; k < kKeptOfGate; ++k) {
    if (begin + k * step < p.width) give(begin + k * step, kept[k]);
  }
  for (int32_t i = begin + kKeptOfGate * step; i < p.width; i += step) give(i, compute(i));
  if (threadIdx.x == 0) quantized.scales[row] = scale.scale;
}

// As few rounds of a full block as the row takes, and in these no more threads than it needs.
uint32_t activate_and_quantize_threads(int32_t width) {
  const auto vectors = static_cast<uint32_t>(width / kVector<__nv_bfloat16>);
  const uint32_t rounds = (vectors + kMaxQuantizeThreads - 1) / kMaxQuantizeThreads;
  return ((vectors + rounds - 1) / rounds + 31) / 32 * 32;
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
  cuda::launch_overlapped(
      cuda::activate_and_quantize,
      {.rows = static_cast<uint32_t>(p.rows), .threads = cuda::activate_and_quantize_threads(p.width)},
      limits, stream, p, out);
}

}  // namespace allot::kernels
