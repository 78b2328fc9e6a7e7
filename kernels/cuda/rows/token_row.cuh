// A row of logits as the token sampler reads it, its tokens' weights, and its largest logit.
#pragma once

#include <cstdint>

#include "base/philox.h"
#include "kernels/cuda/rows/row_vectors.cuh"
#include "kernels/cuda/rows/token_block.cuh"
#include "kernels/token_sampler_cuda.h"

namespace allot::kernels::cuda {

// What a thread knows of the choice where it is not an id.
inline constexpr int32_t kOthers = -1;      // another thread has the id
inline constexpr int32_t kNotANumber = -2;  // a logit is NaN

// Where the random bits of a row come from.
struct Draw {
  const SequenceDraws* draws;
  const int32_t* position;

  __device__ uint32_t bits() const {
    return draw_bits({.key = draws->key,
                      .question = draws->question,
                      .layer = kTokenLayer,
                      .head = 0,
                      .position = static_cast<uint32_t>(*position)},
                     0);
  }
};

// penalised() for the logits whose bit is set. Not inlined: in a batch of long replies most warps meet seen
// tokens in most of their vectors, but only one or two each, and divisions for whole vectors would take half
// of the kernel's time.
__device__ __noinline__ inline void penalise_some(float* x, uint32_t bits, float penalty) {
  for (; bits != 0; bits &= bits - 1) {
    const int j = __ffs(static_cast<int>(bits)) - 1;
    x[j] = penalised(x[j], penalty);
  }
}

template <class T>
struct Row {
  static constexpr int kN = kVector<T>;

  const uint4* logits;
  const uint32_t* seen;  // null without a penalty
  float penalty;
  int32_t vocab_size;
  int32_t vectors;

  __device__ Row(const ChooseTokensParams& p, int64_t row, const uint32_t* seen_bits,
                 float repetition_penalty)
      : logits(reinterpret_cast<const uint4*>(static_cast<const T*>(p.logits) + row * p.logits_stride)),
        seen(repetition_penalty == 1 ? nullptr : seen_bits),
        penalty(repetition_penalty),
        vocab_size(p.vocab_size),
        vectors((p.vocab_size + kN - 1) / kN) {}

  // First vector of part `part` of `parts`.
  __device__ int32_t part(uint32_t part, uint32_t parts) const {
    return static_cast<int32_t>(int64_t{vectors} * part / parts);
  }

  // Those of the kN ids from vector * kN on that were seen, the first in the lowest bit; needs a penalty.
  __device__ uint32_t seen_bits(int32_t vector) const {
    const int32_t id = vector * kN;
    return seen[id / 32] >> (id % 32) & ((1u << kN) - 1);
  }

  // The logit of a token as it is stored.
  __device__ uint16_t bits(int32_t id) const {
    static_assert(sizeof(T) == sizeof(uint16_t));
    return reinterpret_cast<const uint16_t*>(logits)[id];
  }

  // Logits of ids vector * kN and following after the penalty; -infinity beyond the vocabulary.
  __device__ void finish(int32_t vector, const uint4& raw, float (&x)[kN]) const {
    expand<T>(raw, x);
    const int32_t id = vector * kN;
    if (seen != nullptr) {
      const uint32_t some = seen_bits(vector);
      if (some != 0) {
        float y[kN];  // a copy, so that x stays in registers
#pragma unroll
        for (int j = 0; j < kN; ++j) y[j] = x[j];
        penalise_some(y, some, penalty);
#pragma unroll
        for (int j = 0; j < kN; ++j) x[j] = y[j];
      }
    }
    if (id + kN > vocab_size) {
#pragma unroll
      for (int j = 0; j < kN; ++j) x[j] = id + j < vocab_size ? x[j] : -INFINITY;
    }
  }
  __device__ void load(int32_t vector, float (&x)[kN]) const {
    finish(vector, logits[vector], x);
  }

  // Calls body(vector, logits) for the vectors [first, last), a warp's; each lane has every 32nd, kUnroll of
  // them in flight.
  template <int kUnroll, class Body>
  __device__ __forceinline__ void for_each(int32_t first, int32_t last, const Body& body) const {
    for (int32_t v = first + static_cast<int32_t>(threadIdx.x % 32); v < last; v += 32 * kUnroll) {
      uint4 raw[kUnroll];
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) {
        if (v + 32 * k < last) raw[k] = logits[v + 32 * k];
      }
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) {
        if (v + 32 * k < last) {
          float x[kN];
          finish(v + 32 * k, raw[k], x);
          body(v + 32 * k, x);
        }
      }
    }
  }
};

template <class T>
struct Weights {
  static constexpr int kN = Row<T>::kN;
  const Row<T>& row;
  float largest;
  float scale;

  __device__ __forceinline__ void get(const float (&x)[kN], uint32_t (&weight)[kN]) const {
#pragma unroll
    for (int j = 0; j < kN; ++j) weight[j] = token_weight(x[j], largest, scale);
  }

  // Calls body(weights) for the vectors [first, last) except those in which all weights are less than
  // `least`: most, in the logits of a trained model.
  template <class Body>
  __device__ __forceinline__ void for_each(int32_t first, int32_t last, uint32_t least,
                                           const Body& body) const {
    // The exponent of a weight is off by far less than the margin.
    const float least_exponent = __log2f(static_cast<float>(least)) - 31.001f;
    row.template for_each<4>(first, last, [&](int32_t, const float(&x)[kN]) {
      float most = x[0];
#pragma unroll
      for (int j = 1; j < kN; ++j) most = fmaxf(most, x[j]);
      if ((most - largest) * scale < least_exponent) return;
      uint32_t weight[kN];
      get(x, weight);
      body(weight);
    });
  }
};

// The larger of two numbers; NaN if either is NaN.
__device__ __forceinline__ float larger(float a, float b) {
  float y;
#ifdef __CUDACC__
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
#else
  y = a != a || b < a ? a : b;
#endif
  return y;
}

// Orders floats as integers, NaN above all.
__device__ __forceinline__ uint32_t ordered(float x) {
  if (x != x) return 0xFFFFFFFFu;
  const uint32_t bits = __float_as_uint(x + 0.0f);  // -0 and 0 are a tie
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float unordered(uint32_t order) {
  return __uint_as_float((order & 0x80000000u) != 0 ? order & 0x7FFFFFFFu : ~order);
}

// The largest logit (as ordered()) and the lowest vector that holds it, as ~vector.
template <class T>
__device__ uint64_t find_largest(Shared& s, const Row<T>& row, int32_t first, int32_t last) {
  float best = -INFINITY, any = -INFINITY;
  int32_t best_vector = INT32_MAX;
  row.template for_each<4>(first, last, [&](int32_t vector, const float(&x)[Row<T>::kN]) {
    float largest = x[0];
#pragma unroll
    for (int j = 1; j < Row<T>::kN; ++j) largest = larger(largest, x[j]);
    any = larger(any, largest);  // NaN from then on
    if (largest > best || best_vector == INT32_MAX) {
      best = largest;
      best_vector = vector;
    }
  });
  return cluster_max(s,
                     uint64_t{ordered(any != any ? any : best)} << 32 | ~static_cast<uint32_t>(best_vector));
}

}  // namespace allot::kernels::cuda
