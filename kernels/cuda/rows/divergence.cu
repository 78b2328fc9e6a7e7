// One block a pair of rows, which it reads twice: for the largest logits and the sums of exponentials, and
// for the terms of the divergence. A multiprocessor holds one block, so that the rows at work fit in L2 and
// the second time come from there: with four blocks of 512 threads, 1,024 rows of 49,152 logits took an H100
// 216 microseconds.
#include <cstdint>

#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/row_vectors.cuh"
#include "kernels/cuda/rows/validate_rows.h"
#include "kernels/rows_cuda.h"

namespace allot::kernels {
namespace cuda {
namespace {

constexpr int kDivergenceThreads = 1024;
constexpr int kDivergenceWarps = kDivergenceThreads / 32;

// The values of all threads of the block combined in a fixed order, the same in every thread.
template <class X, class Combine>
__device__ __forceinline__ X of_block(X x, const Combine& combine) {
  __shared__ X of_warps[kDivergenceWarps];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = combine(x, __shfl_xor_sync(kFullWarp, x, offset));
  __syncthreads();  // the values of a call before have been read
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  x = of_warps[threadIdx.x % kDivergenceWarps];
#pragma unroll
  for (int offset = kDivergenceWarps / 2; offset > 0; offset /= 2) {
    x = combine(x, __shfl_xor_sync(kFullWarp, x, offset));
  }
  return x;
}

// A logit and its place as one number that grows with the logit and, among equal logits, falls with the
// place. The sum makes -0 equal to 0.
__device__ __forceinline__ unsigned long long place_key(float logit, int32_t place) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);
  const uint32_t ordered = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(ordered) << 32 | ~static_cast<uint32_t>(place);
}
__device__ __forceinline__ float logit_of(unsigned long long key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  return __uint_as_float(ordered >> 31 != 0 ? ordered & 0x7FFFFFFFu : ~ordered);
}

// (exp(-t) - 1 + t) / t^2 for |t| <= 1: its Taylor polynomial, relative error below 1e-7.
__device__ __forceinline__ float divergence_series(float t) {
  float series = 1.0f / 3628800;  // 1 / 10!
  series = fmaf(series, t, -1.0f / 362880);
  series = fmaf(series, t, 1.0f / 40320);
  series = fmaf(series, t, -1.0f / 5040);
  series = fmaf(series, t, 1.0f / 720);
  series = fmaf(series, t, -1.0f / 120);
  series = fmaf(series, t, 1.0f / 24);
  series = fmaf(series, t, -1.0f / 6);
  return fmaf(series, t, 0.5f);
}

// A thread's part of a row: the largest logit so far with its place, the first of equal ones, and the sum of
// exp(logit - largest).
struct SoftmaxPart {
  float largest = -INFINITY;
  int32_t place = 0;
  double sum = 0;

  // The first `count` of N logits from `first` on.
  template <int N>
  __device__ __forceinline__ void add(const float (&logits)[N], int32_t first, int32_t count) {
    float before = largest;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (j >= count || !(logits[j] > largest)) continue;
      largest = logits[j];
      place = first + j;
    }
    if (largest > before) sum *= static_cast<double>(fast_exp2((before - largest) * kLog2E));
    float part = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) part += j < count ? fast_exp2((logits[j] - largest) * kLog2E) : 0.0f;
    sum += static_cast<double>(part);
  }
};

// What the softmax of a row needs: its largest logit and 1 / the sum of exp(logit - largest).
struct RowSoftmax {
  float largest;
  float inverse;

  __device__ __forceinline__ float operator()(float logit) const {
    return fast_exp2((logit - largest) * kLog2E) * inverse;
  }
};

// p (exp(-t) - 1 + t) with q = p exp(-t). Of large |t| exp(-t) may overflow where q does not.
__device__ __forceinline__ float divergence_term(float t, float p, float q) {
  return fabsf(t) < 1 ? p * t * t * divergence_series(t) : fmaf(p, t, q - p);
}

template <class T, int N>
__global__ void __launch_bounds__(kDivergenceThreads) row_divergence(DivergenceParams p) {
  begin_overlapped();
  const int64_t first = int64_t{blockIdx.x} * p.stride;
  const T* const dense = static_cast<const T*>(p.dense) + first;
  const T* const sampled = static_cast<const T*>(p.sampled) + first;
  // Calls body(a, b, place, count) with N logits of both rows, of which the first `count` are in the
  // vocabulary; vectors end within the stride.
  const auto for_logits = [&](const auto& body) {
    constexpr int32_t kStep = kDivergenceThreads * N;
    for (int32_t i = static_cast<int32_t>(threadIdx.x) * N; i < p.vocab_size; i += kStep) {
      float a[N], b[N];
      load_elements<T, N>(dense + i, a);
      load_elements<T, N>(sampled + i, b);
      body(a, b, i, min(N, p.vocab_size - i));
    }
  };

  SoftmaxPart dense_part, sampled_part;
  for_logits([&](const float(&a)[N], const float(&b)[N], int32_t place, int32_t count) {
    dense_part.add(a, place, count);
    sampled_part.add(b, place, count);
  });
  const auto larger = [](unsigned long long x, unsigned long long y) { return max(x, y); };
  const auto sum = [](double x, double y) { return x + y; };
  const unsigned long long dense_top = of_block(place_key(dense_part.largest, dense_part.place), larger);
  const unsigned long long sampled_top =
      of_block(place_key(sampled_part.largest, sampled_part.place), larger);
  RowSoftmax of_dense{logit_of(dense_top), 1}, of_sampled{logit_of(sampled_top), 1};
  const auto of_all = [&](const SoftmaxPart& part, float largest) {
    // A thread without logits has -infinity as its largest, and adds 0.
    const float factor = fast_exp2((part.largest - largest) * kLog2E);
    return of_block(part.sum > 0 || isnan(part.sum) ? part.sum * static_cast<double>(factor) : 0.0, sum);
  };
  const double dense_sum = of_all(dense_part, of_dense.largest);
  const double sampled_sum = of_all(sampled_part, of_sampled.largest);
  of_dense.inverse = static_cast<float>(1 / dense_sum);
  of_sampled.inverse = static_cast<float>(1 / sampled_sum);
  const auto shift =
      static_cast<float>((of_dense.largest + log(dense_sum)) - (of_sampled.largest + log(sampled_sum)));

  double divergence = 0;
  for_logits([&](const float(&a)[N], const float(&b)[N], int32_t, int32_t count) {
    float part = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (j < count) part += divergence_term(a[j] - b[j] - shift, of_dense(a[j]), of_sampled(b[j]));
    }
    divergence += part;
  });
  divergence = of_block(divergence, sum);
  if (threadIdx.x == 0) {
    const bool same = static_cast<uint32_t>(dense_top) == static_cast<uint32_t>(sampled_top);
    p.out[blockIdx.x] = {static_cast<float>(divergence), !isnan(divergence) && same};
  }
}

}  // namespace
}  // namespace cuda

void row_divergence_cuda(const DivergenceParams& p, const DeviceLimits& limits, CudaStream stream) {
  cuda::check(p);
  if (p.rows == 0) return;
  const bool aligned = cuda::aligned_to_vectors(p.stride * size_of(p.dtype), p.dense, p.sampled);
  cuda::for_element(p.dtype, aligned, [&]<class T, int N>() {
    cuda::launch_overlapped(
        cuda::row_divergence<T, N>,
        {.rows = static_cast<uint32_t>(p.rows), .threads = static_cast<uint32_t>(cuda::kDivergenceThreads)},
        limits, stream, p);
  });
}

}  // namespace allot::kernels
