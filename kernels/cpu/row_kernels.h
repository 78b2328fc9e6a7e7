// The inner loops of kernels/rows.h for rows [begin, end), as templates over the vector type. Arguments are
// checked by the caller.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cpu/vec_math.h"
#include "kernels/rows.h"

namespace allot::kernels::cpu {

// Calls body(i, lanes) for every group of 16 elements; `lanes` is smaller in the last one when width is not a
// multiple of 16.
template <class V, class Body>
ALLOT_INLINE void for_lanes(int64_t width, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) body(i, kLanes);
  if (i < width) body(i, static_cast<int>(width - i));
}

template <class V, class T>
ALLOT_INLINE typename V::F load_lanes(const T* p, int lanes) {
  return lanes == kLanes ? V::load(p) : V::load_partial(p, lanes);
}

template <class V, class T>
ALLOT_INLINE void store_lanes(T* p, typename V::F x, int lanes) {
  if (lanes == kLanes) {
    V::store(p, x);
  } else {
    V::store_partial(p, x, lanes);
  }
}

// Rounds a row to the grid of RmsNormParams::int8_grid.
template <class V, class T>
ALLOT_INLINE void round_to_int8_grid(int64_t width, T* row) {
  using F = typename V::F;
  F largest = V::zero();
  for_lanes<V>(width, [&](int64_t i, int lanes) {
    const F x = load_lanes<V>(row + i, lanes);
    largest = V::max(largest, V::max(x, V::zero() - x));
  });
  const float reached = V::reduce_max(largest);
  const F scale = V::set1(127 / (reached > kLeastInt8Range ? reached : kLeastInt8Range));
  for_lanes<V>(width, [&](int64_t i, int lanes) {
    store_lanes<V>(row + i, V::round(load_lanes<V>(row + i, lanes) * scale) / scale, lanes);
  });
}

template <class V, class T>
void rms_norm_rows(const RmsNormParams& p, int64_t begin, int64_t end) {
  using F = typename V::F;
  const T* weight = static_cast<const T*>(p.weight);
  for (int64_t row = begin; row < end; ++row) {
    const T* input = static_cast<const T*>(p.input) + row * p.width;
    T* residual = p.residual == nullptr ? nullptr : static_cast<T*>(p.residual) + row * p.width;
    T* out = static_cast<T*>(p.out) + row * p.width;
    F squares = V::zero();
    for_lanes<V>(p.width, [&](int64_t i, int lanes) {
      F x = load_lanes<V>(input + i, lanes);
      if (residual != nullptr) {
        store_lanes<V>(residual + i, x + load_lanes<V>(residual + i, lanes), lanes);
        x = load_lanes<V>(residual + i, lanes);  // the norm is of what the residual stream now holds
      }
      squares = V::fma(x, x, squares);
    });
    const float mean = V::reduce_add(squares) / static_cast<float>(p.width);
    const F factor = V::set1(1 / std::sqrt(mean + p.epsilon));
    const T* normed = residual != nullptr ? residual : input;
    for_lanes<V>(p.width, [&](int64_t i, int lanes) {
      const F x = load_lanes<V>(normed + i, lanes) * factor;
      store_lanes<V>(out + i, x * load_lanes<V>(weight + i, lanes), lanes);
    });
    if (p.int8_grid) round_to_int8_grid<V>(p.width, out);
  }
}

// to = norm(from + bias) * weight; a null bias means none. `to` may be `from`.
template <class V, class T>
ALLOT_INLINE void normalise_head(const T* from, const T* bias, const T* weight, float epsilon, int64_t dim,
                                 T* to) {
  using F = typename V::F;
  const auto load = [&](int64_t i, int lanes) {
    const F x = load_lanes<V>(from + i, lanes);
    return bias == nullptr ? x : x + load_lanes<V>(bias + i, lanes);
  };
  F squares = V::zero();
  for_lanes<V>(dim, [&](int64_t i, int lanes) {
    const F x = load(i, lanes);
    squares = V::fma(x, x, squares);
  });
  const F factor = V::set1(1 / std::sqrt(V::reduce_add(squares) / static_cast<float>(dim) + epsilon));
  for_lanes<V>(dim, [&](int64_t i, int lanes) {
    store_lanes<V>(to + i, load(i, lanes) * factor, lanes);  // through memory, for its rounding
    store_lanes<V>(to + i, load_lanes<V>(to + i, lanes) * load_lanes<V>(weight + i, lanes), lanes);
  });
}

// The angles by which the two halves of a head are rotated.
struct Angles {
  const float* cos;  // [half]
  const float* sin;  // [half]
  int64_t half;
};

// to = rotated(from + bias); a null bias means none. `to` may be `from`.
template <class V, class T>
ALLOT_INLINE void rotate_head(const T* from, const T* bias, const Angles& angles, T* to) {
  using F = typename V::F;
  const int64_t half = angles.half;
  for_lanes<V>(half, [&](int64_t i, int lanes) {
    F low = load_lanes<V>(from + i, lanes);
    F high = load_lanes<V>(from + half + i, lanes);
    if (bias != nullptr) {
      low = low + load_lanes<V>(bias + i, lanes);
      high = high + load_lanes<V>(bias + half + i, lanes);
    }
    const F c = load_lanes<V>(angles.cos + i, lanes);
    const F s = load_lanes<V>(angles.sin + i, lanes);
    store_lanes<V>(to + i, low * c - high * s, lanes);
    store_lanes<V>(to + half + i, high * c + low * s, lanes);
  });
}

template <class V, class T>
void rotate_and_store_rows(const RotaryParams& p, int64_t begin, int64_t end) {
  const int64_t dim = p.head_dim;
  const int64_t half = dim / 2;
  const T* bias = static_cast<const T*>(p.bias);
  const auto bias_of = [&](int32_t head) { return bias == nullptr ? nullptr : bias + head * dim; };
  for (int64_t token = begin; token < end; ++token) {
    T* qkv = static_cast<T*>(p.qkv) + token * p.qkv_stride;
    const int64_t table_row = p.positions[token] * half;
    const Angles angles{p.cos + table_row, p.sin + table_row, half};
    const auto place_head = [&](int32_t head, const void* norm, T* to) {
      const T* from = qkv + head * dim;
      if (norm == nullptr) {
        rotate_head<V, T>(from, bias_of(head), angles, to);
      } else {
        normalise_head<V, T>(from, bias_of(head), static_cast<const T*>(norm), p.norm_epsilon, dim, to);
        rotate_head<V, T>(to, nullptr, angles, to);
      }
    };
    for (int32_t head = 0; head < p.num_q_heads; ++head) place_head(head, p.q_norm, qkv + head * dim);
    const int64_t page = p.slots[token] / p.page_size;
    const int64_t slot = p.slots[token] % p.page_size;
    for (int32_t head = 0; head < p.num_kv_heads; ++head) {
      const int64_t offset = ((page * p.num_kv_heads + head) * p.page_size + slot) * dim;
      const int32_t key_head = p.num_q_heads + head;
      const int32_t value_head = key_head + p.num_kv_heads;
      place_head(key_head, p.k_norm, static_cast<T*>(p.key_pages) + offset);
      const T* value = qkv + value_head * dim;
      const T* value_bias = bias_of(value_head);
      T* to = static_cast<T*>(p.value_pages) + offset;
      auto squares = V::zero();
      for_lanes<V>(dim, [&](int64_t i, int lanes) {
        auto x = load_lanes<V>(value + i, lanes);
        if (value_bias != nullptr) x = x + load_lanes<V>(value_bias + i, lanes);
        store_lanes<V>(to + i, x, lanes);
        x = load_lanes<V>(to + i, lanes);  // rounded
        squares = V::fma(x, x, squares);
      });
      if (p.value_norms != nullptr) p.value_norms[offset / dim] = std::sqrt(V::reduce_add(squares));
    }
  }
}

template <class V, class T>
void store_value_norms_rows(const ValueNormsParams& p, int64_t begin, int64_t end) {
  for (int64_t token = begin; token < end; ++token) {
    if (p.slots[token] < 0) continue;
    const int64_t page = p.slots[token] / p.page_size;
    const int64_t slot = p.slots[token] % p.page_size;
    const T* value = static_cast<const T*>(p.values) + token * p.value_stride;
    for (int32_t head = 0; head < p.num_kv_heads; ++head, value += p.head_dim) {
      auto squares = V::zero();
      for_lanes<V>(p.head_dim, [&](int64_t i, int lanes) {
        const auto x = load_lanes<V>(value + i, lanes);
        squares = V::fma(x, x, squares);
      });
      p.value_norms[(page * p.num_kv_heads + head) * p.page_size + slot] = std::sqrt(V::reduce_add(squares));
    }
  }
}

template <class V>
ALLOT_INLINE typename V::F activate(Activation activation, typename V::F x) {
  if (activation == Activation::kReluSquared) {
    x = V::max(V::zero(), x);  // in this order NaN stays
    return x * x;
  }
  return x / (V::set1(1.0f) + exp2<V>(x * V::set1(-kLog2E)));
}

template <class V, class T>
void activate_and_multiply_rows(const ActivateAndMultiplyParams& p, int64_t begin, int64_t end) {
  using F = typename V::F;
  for (int64_t row = begin; row < end; ++row) {
    const T* gate = static_cast<const T*>(p.gate_up) + row * 2 * p.width;
    const T* up = gate + p.width;
    T* out = static_cast<T*>(p.out) + row * p.width;
    for_lanes<V>(p.width, [&](int64_t i, int lanes) {
      const F x = load_lanes<V>(gate + i, lanes);
      store_lanes<V>(out + i, activate<V>(p.activation, x) * load_lanes<V>(up + i, lanes), lanes);
    });
  }
}

}  // namespace allot::kernels::cpu
