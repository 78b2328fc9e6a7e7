#include "launch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/bfloat16.h"
#include "kernels/float16.h"

namespace allot::kernels::testing {
namespace {

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
constexpr float kGuard = -12345.0f;
constexpr int64_t kGuardElements = 64;
constexpr int32_t kStrideGap = 24;  // elements between queries, as k and v are in a fused projection

}  // namespace

Elements::Elements(DType dtype, int64_t count, float value)
    : dtype_(dtype), bytes_(static_cast<size_t>(count * size_of(dtype))) {
  for (int64_t i = 0; i < count; ++i) set(i, value);
}

float Elements::get(int64_t index) const {
  if (dtype_ == DType::kFloat32) {
    float x;
    std::memcpy(&x, bytes_.data() + index * 4, 4);
    return x;
  }
  uint16_t x;
  std::memcpy(&x, bytes_.data() + index * 2, 2);
  return dtype_ == DType::kBFloat16 ? float_from_bfloat16(x) : float_from_float16(x);
}

void Elements::set(int64_t index, float value) {
  if (dtype_ == DType::kFloat32) {
    std::memcpy(bytes_.data() + index * 4, &value, 4);
  } else {
    const uint16_t x = dtype_ == DType::kBFloat16 ? bfloat16_from_float(value) : float16_from_float(value);
    std::memcpy(bytes_.data() + index * 2, &x, 2);
  }
}

Elements random_elements(DType dtype, int64_t count, uint32_t seed, float deviation) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  Elements elements(dtype, count, 0);
  for (int64_t i = 0; i < count; ++i) elements.set(i, normal(random));
  return elements;
}

Launch::Launch(const LaunchSpec& spec) : spec_(spec) {
  int32_t longest = 0;
  query_starts_.push_back(0);
  int64_t used_pages = 0;
  for (const Sequence& sequence : spec.sequences) {
    query_starts_.push_back(query_starts_.back() + sequence.queries);
    lengths_.push_back(sequence.length);
    budgets.push_back(sequence.budget);
    longest = std::max(longest, sequence.length);
    const bool own_pages = !spec.repeat_first || used_pages == 0;
    if (own_pages) used_pages += (sequence.length + spec.page_size - 1) / spec.page_size;
  }
  const auto batch = static_cast<int64_t>(spec.sequences.size());
  for (int64_t b = 0; b < batch; ++b) {
    draws.push_back({{spec.seed, static_cast<uint32_t>(b)}, static_cast<uint32_t>(7 * b + 1)});
  }

  // Pages in a shuffled order among a few that nobody owns.
  const int64_t num_pages = used_pages + 3;
  const int32_t max_pages = (longest + spec.page_size - 1) / spec.page_size + 1;
  std::vector<int32_t> order(static_cast<size_t>(num_pages));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(spec.page_seed));
  page_table_.assign(static_cast<size_t>(batch * max_pages), std::numeric_limits<int32_t>::min());
  size_t next = 0;
  for (int64_t b = 0; b < batch; ++b) {
    if (spec.repeat_first) next = 0;
    for (int32_t first = 0, i = 0; first < lengths_[b]; first += spec.page_size, ++i) {
      page_table_[b * max_pages + i] = order[next++];
    }
  }

  const int64_t row = int64_t{spec.num_q_heads} * spec.head_dim;
  const int64_t cache = num_pages * spec.num_kv_heads * spec.page_size * spec.head_dim;
  query_ = Elements(spec.dtype, num_queries() * (row + kStrideGap), kPoison);
  key_pages_ = Elements(spec.dtype, cache, kPoison);
  value_pages_ = Elements(spec.dtype, cache, kPoison);
  out_ = Elements(spec.dtype, num_queries() * row + 2 * kGuardElements, kGuard);

  params.batch = batch;
  params.num_q_heads = spec.num_q_heads;
  params.num_kv_heads = spec.num_kv_heads;
  params.head_dim = spec.head_dim;
  params.page_size = spec.page_size;
  params.max_pages = max_pages;
  params.num_pages = num_pages;
  params.dtype = spec.dtype;
  params.scale = 1 / std::sqrt(static_cast<float>(spec.head_dim));
  params.query = query_.data();
  params.query_stride = row + kStrideGap;
  params.key_pages = key_pages_.data();
  params.value_pages = value_pages_.data();
  params.page_table = page_table_.data();
  params.query_start = query_starts_.data();
  params.lengths = lengths_.data();
  params.out = static_cast<char*>(out_.data()) + kGuardElements * size_of(spec.dtype);
  params.method.estimator = spec.estimator;
  params.budgets = budgets.data();
  params.draws = draws.data();
  params.layer = 5;
  params.first_head = spec.kv_heads_before * (spec.num_q_heads / spec.num_kv_heads);

  std::mt19937 random(spec.seed);
  std::normal_distribution<float> normal;
  const int64_t distinct = spec.repeat_first ? 1 : batch;
  const int64_t distinct_queries = query_starts_[distinct];
  for (int64_t query = 0; query < num_queries(); ++query) {
    for (int32_t i = 0; i < row; ++i) {
      const bool copied = query >= distinct_queries;
      const float x = copied ? query_.get(query % distinct_queries * params.query_stride + i)
                             : normal(random) * static_cast<float>(spec.score_deviation);
      set_query(query, 0, i, x);
    }
  }
  for (int64_t b = 0; b < distinct; ++b) {
    for (int32_t head = 0; head < spec.num_kv_heads; ++head) {
      for (int32_t token = 0; token < lengths_[b]; ++token) {
        for (int32_t i = 0; i < spec.head_dim; ++i) {
          set_key(b, head, token, i, normal(random));
          set_value(b, head, token, i, normal(random));
        }
      }
    }
  }
  for (int64_t vector = 0; vector < num_pages * spec.num_kv_heads * spec.page_size; ++vector) {
    float squares = 0;
    for (int64_t i = vector * spec.head_dim; i < (vector + 1) * spec.head_dim; ++i)
      squares += value_pages_.get(i) * value_pages_.get(i);
    value_norms.push_back(std::sqrt(squares));
  }
  params.value_norms = value_norms.data();
}

int64_t Launch::slot_index(int64_t sequence, int32_t kv_head, int32_t token, int32_t i) const {
  const int64_t page = page_table_[sequence * params.max_pages + token / params.page_size];
  return ((page * params.num_kv_heads + kv_head) * params.page_size + token % params.page_size) *
             params.head_dim +
         i;
}

void Launch::set_key(int64_t sequence, int32_t kv_head, int32_t token, int32_t i, float x) {
  key_pages_.set(slot_index(sequence, kv_head, token, i), x);
}

void Launch::set_value(int64_t sequence, int32_t kv_head, int32_t token, int32_t i, float x) {
  value_pages_.set(slot_index(sequence, kv_head, token, i), x);
}

void Launch::set_query(int64_t query, int32_t head, int32_t i, float x) {
  query_.set(query * params.query_stride + int64_t{head} * params.head_dim + i, x);
}

void Launch::stretch_values() {
  for (int64_t b = 0; b < params.batch; ++b) {
    if (b > 0 && page_table_[b * params.max_pages] == page_table_[0]) continue;  // the first one's values
    for (int32_t head = 0; head < params.num_kv_heads; ++head) {
      for (int32_t token = 0; token < lengths_[b]; ++token) {
        const float length = std::exp(2.5f * std::sin(static_cast<float>(17 * token + head)));
        for (int32_t i = 0; i < params.head_dim; ++i)
          set_value(b, head, token, i, (i + token) % 3 == 0 ? -length : length);
        const int64_t vector = slot_index(b, head, token, 0) / params.head_dim;
        float squares = 0;
        for (int32_t i = 0; i < params.head_dim; ++i)
          squares += std::pow(value_pages_.get(vector * params.head_dim + i), 2.0f);
        value_norms[vector] = std::sqrt(squares);
      }
    }
  }
}

Launch::SplitBytes Launch::split_bytes(const AttentionParams& p, int64_t num_queries) {
  const int64_t keys = p.num_pages * p.num_kv_heads * p.page_size;
  const int64_t queries = num_queries * p.num_q_heads;
  return {.high = static_cast<size_t>(keys / kSplitBlockKeys * split_block_bytes(p.head_dim)),
          .low = static_cast<size_t>(keys * p.head_dim),
          .query = static_cast<size_t>(2 * queries * p.head_dim),
          .query_units = static_cast<size_t>(queries) * sizeof(float)};
}

void Launch::split_keys(bool with_low_plane) {
  const SplitBytes bytes = split_bytes(params, num_queries());
  split_high_.assign(bytes.high, 0xFF);
  split_low_.assign(bytes.low, 0x55);
  split_query_.assign(bytes.query, 0x55);
  split_query_units_.assign(bytes.query_units / sizeof(float), kPoison);
  const int64_t keys = params.num_pages * params.num_kv_heads * params.page_size;
  std::vector<int64_t> slots(static_cast<size_t>(keys));
  std::iota(slots.begin(), slots.end(), 0);
  // The keys of all heads and pages, one after the other; those of no token are poison, and so is their unit.
  store_split_keys({.tokens = keys,
                    .num_kv_heads = 1,
                    .head_dim = params.head_dim,
                    .dtype = params.dtype,
                    .keys = params.key_pages,
                    .key_stride = params.head_dim,
                    .high = split_high_.data(),
                    .low = with_low_plane ? split_low_.data() : nullptr,
                    .num_pages = keys / kSplitBlockKeys,
                    .page_size = kSplitBlockKeys,
                    .slots = slots.data()});
  split_queries({.tokens = num_queries(),
                 .num_q_heads = params.num_q_heads,
                 .head_dim = params.head_dim,
                 .dtype = params.dtype,
                 .queries = params.query,
                 .query_stride = params.query_stride,
                 .planes = split_query_.data(),
                 .units = split_query_units_.data()});
  params.split = {.high = split_high_.data(),
                  .low = with_low_plane ? split_low_.data() : nullptr,
                  .query = split_query_.data(),
                  .query_units = split_query_units_.data()};
}

std::vector<double> Launch::run(cpu::Isa isa, int num_threads) {
  const int64_t count = num_rows() * params.head_dim;
  for (int64_t i = 0; i < count; ++i) out_.set(kGuardElements + i, kPoison);
  cpu::attend(params, num_threads, isa);
  const float guard = Elements(spec_.dtype, 1, kGuard).get(0);
  for (int64_t i = 0; i < kGuardElements; ++i) {
    EXPECT_EQ(out_.get(i), guard) << "guard element " << i << " before the output";
    EXPECT_EQ(out_.get(kGuardElements + count + i), guard) << "guard element " << i << " after the output";
  }
  std::vector<double> result;
  for (int64_t i = 0; i < count; ++i) result.push_back(out_.get(kGuardElements + i));
  return result;
}

std::vector<unsigned char> Launch::output_bytes() const {
  return out_.bytes();
}

void Launch::copy_sequence(const Launch& from, int64_t source, int64_t target) {
  budgets[target] = from.budgets[source];
  draws[target] = from.draws[source];
  const int32_t tokens = std::min(from.lengths_[source], lengths_[target]);
  for (int32_t head = 0; head < params.num_kv_heads; ++head) {
    for (int32_t token = 0; token < tokens; ++token) {
      const int64_t there = from.slot_index(source, head, token, 0);
      value_norms[slot_index(target, head, token, 0) / params.head_dim] =
          from.value_norms[there / params.head_dim];
      for (int32_t i = 0; i < params.head_dim; ++i) {
        set_key(target, head, token, i, from.key_pages_.get(there + i));
        set_value(target, head, token, i, from.value_pages_.get(there + i));
      }
    }
  }
  int64_t query = query_starts_[target + 1], from_query = from.query_starts_[source + 1];
  while (--query >= query_starts_[target] && --from_query >= from.query_starts_[source]) {
    for (int32_t i = 0; i < params.num_q_heads * params.head_dim; ++i) {
      set_query(query, 0, i, from.query_.get(from_query * from.params.query_stride + i));
    }
  }
}

std::vector<std::vector<double>> Launch::key_weights(const std::function<std::vector<double>()>& run) {
  const int32_t longest = *std::max_element(lengths_.begin(), lengths_.end());
  std::vector<std::vector<double>> weights(num_rows(), std::vector<double>(longest, 0.0));
  const Elements saved = value_pages_;
  const auto set_window = [&](int32_t window, float diagonal) {
    for (int64_t b = 0; b < params.batch; ++b) {
      for (int32_t head = 0; head < params.num_kv_heads; ++head) {
        for (int32_t token = window; token < std::min(lengths_[b], window + params.head_dim); ++token) {
          set_value(b, head, token, token - window, diagonal);
        }
      }
    }
  };
  for (int64_t b = 0; b < params.batch; ++b) {
    for (int32_t head = 0; head < params.num_kv_heads; ++head) {
      for (int32_t token = 0; token < lengths_[b]; ++token) {
        for (int32_t i = 0; i < params.head_dim; ++i) set_value(b, head, token, i, 0);
      }
    }
  }
  for (int32_t window = 0; window < longest; window += params.head_dim) {
    set_window(window, 1);
    const std::vector<double> out = run();
    set_window(window, 0);
    for (int64_t row = 0; row < num_rows(); ++row) {
      for (int32_t i = 0; i < params.head_dim && window + i < longest; ++i) {
        weights[row][window + i] = out[row * params.head_dim + i];
      }
    }
  }
  value_pages_ = saved;
  params.value_pages = value_pages_.data();
  return weights;
}

std::vector<std::vector<double>> Launch::key_weights(cpu::Isa isa) {
  return key_weights([&] { return run(isa); });
}

std::vector<cpu::Isa> supported_isas() {
  std::vector<cpu::Isa> result;
  for (const cpu::Isa isa : {cpu::Isa::kPortable, cpu::Isa::kAvx2, cpu::Isa::kAvx512, cpu::Isa::kAmx}) {
    if (isa <= cpu::best_isa()) result.push_back(isa);
  }
  return result;
}

void MeanEstimate::add(const double* sample) {
  ++count_;
  for (size_t i = 0; i < sum_.size(); ++i) {
    sum_[i] += sample[i];
    squares_[i] += sample[i] * sample[i];
  }
}

double MeanEstimate::standard_error(size_t i) const {
  const auto n = static_cast<double>(count_);
  const double variance = std::max(0.0, squares_[i] / n - mean(i) * mean(i));
  return std::sqrt(variance / n);
}

double MeanEstimate::largest_z(const std::vector<double>& expected, double least_error) const {
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(mean(i) - expected[i]);
    largest = std::max(largest, error / std::max(standard_error(i), least_error));
  }
  return largest;
}

}  // namespace allot::kernels::testing
