#include "model/cuda/random_fill.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <type_traits>

#include "model/cuda/device_memory.h"

namespace allot::model::cuda {
namespace {

constexpr uint32_t kThreads = 256;

template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;

// The bits of `x` as T, in the low half of the word where they are 16.
template <class T>
__device__ __forceinline__ uint32_t rounded_bits(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return __float_as_uint(x);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
  } else {
    return __half_as_ushort(__float2half_rn(x));
  }
}

// One thread makes one Philox block of a run; blocks of threads share out the runs in y.
template <class T>
__device__ __forceinline__ void fill_run(const RandomTensor& tensor, uint64_t first, int64_t count,
                                         BitsOf<T>* out) {
  constexpr int kElements = static_cast<int>(kRandomBlock);
  const uint64_t block = first / kRandomBlock + uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  // Where in `out` the block begins; before it when `first` is within the block.
  const auto begin = static_cast<int64_t>(block * kRandomBlock - first);
  if (begin >= count) return;
  const PhiloxBlock random = random_block(tensor, block);
  uint32_t bits[kElements];
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const uint32_t word = random.word[i / 2];
    bits[i] = rounded_bits<T>(random_value(tensor, i % 2 == 0 ? word & 0xFFFFu : word >> 16));
  }
  const bool whole = begin >= 0 && begin + kElements <= count;
  if (whole && reinterpret_cast<uintptr_t>(out + begin) % sizeof(uint4) == 0) {
    // Not assignments: nvcc 13.0 splits those into stores of 4 bytes.
    auto* const vectors = reinterpret_cast<uint4*>(out + begin);
    if constexpr (sizeof(T) == 4) {
      __stcs(vectors, make_uint4(bits[0], bits[1], bits[2], bits[3]));
      __stcs(vectors + 1, make_uint4(bits[4], bits[5], bits[6], bits[7]));
    } else {
      __stcs(vectors, make_uint4(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16, bits[4] | bits[5] << 16,
                                 bits[6] | bits[7] << 16));
    }
  } else {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if (begin + i >= 0 && begin + i < count) out[begin + i] = static_cast<BitsOf<T>>(bits[i]);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    fill_runs(RandomTensor tensor, ElementRuns runs, int64_t count, BitsOf<T>* out) {
  for (int64_t begin = blockIdx.y * runs.length; begin < count; begin += gridDim.y * runs.length) {
    const int64_t left = count - begin;
    fill_run<T>(tensor, static_cast<uint64_t>(runs.at(begin)), left < runs.length ? left : runs.length,
                out + begin);
  }
}

template <class T>
void launch(const RandomTensor& tensor, const ElementRuns& runs, int64_t count, void* out,
            cudaStream_t stream) {
  constexpr int64_t kMostRows = 65535;  // of a grid in y
  const int64_t longest = std::min(count, runs.length);
  // A run that begins within a Philox block has one more.
  const int64_t blocks = longest / static_cast<int64_t>(kRandomBlock) + 2;
  const int64_t rows = (count + runs.length - 1) / runs.length;
  const dim3 grid(static_cast<uint32_t>((blocks + kThreads - 1) / kThreads),
                  static_cast<uint32_t>(std::min(rows, kMostRows)));
  fill_runs<T><<<grid, kThreads, 0, stream>>>(tensor, runs, count, static_cast<BitsOf<T>*>(out));
  check(cudaGetLastError(), "fill_random_cuda");
}

}  // namespace

void fill_random_runs_cuda(const RandomTensor& tensor, const ElementRuns& runs, int64_t count,
                           kernels::DType dtype, void* out, cudaStream_t stream) {
  if (count == 0) return;
  switch (dtype) {
    case kernels::DType::kFloat32:
      return launch<float>(tensor, runs, count, out, stream);
    case kernels::DType::kBFloat16:
      return launch<__nv_bfloat16>(tensor, runs, count, out, stream);
    case kernels::DType::kFloat16:
      return launch<__half>(tensor, runs, count, out, stream);
  }
}

void fill_random_cuda(const RandomTensor& tensor, uint64_t first, int64_t count, kernels::DType dtype,
                      void* out, cudaStream_t stream) {
  const int64_t length = std::max<int64_t>(1, count);
  fill_random_runs_cuda(tensor, {.first = static_cast<int64_t>(first), .length = length, .pitch = length},
                        count, dtype, out, stream);
}

}  // namespace allot::model::cuda
