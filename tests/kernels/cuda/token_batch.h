// Rows of logits for the token sampler's tests, and what the CPU chooses from them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/token_sampler_cuda.h"
#include "model/sampling.h"
#include "tests/kernels/launch.h"

namespace allot::kernels::testing {

inline constexpr int32_t kOldToken = -77;  // in `chosen` before a launch

// A batch on the host.
struct Batch {
  Batch(DType element, int64_t batch_rows, int32_t vocabulary)
      : dtype(element),
        rows(batch_rows),
        vocab_size(vocabulary),
        stride((int64_t{vocabulary} + 7) / 8 * 8 + 8),
        logits(element, batch_rows * stride, std::nanf("")),
        rules(batch_rows, TokenRule{.active = 1}),
        draws(batch_rows),
        positions(batch_rows),
        seen(batch_rows * seen_words(vocabulary)) {
    for (int64_t row = 0; row < rows; ++row) {
      draws[row] = {.key = {.run_seed = 11, .sampling_seed = static_cast<uint32_t>(row / 3)},
                    .question = static_cast<uint32_t>(5 * row)};
      positions[row] = static_cast<int32_t>(100 + row);
    }
  }

  void see(int64_t row, int32_t id) { seen[row * seen_words(vocab_size) + id / 32] |= 1u << (id % 32); }
  bool has_seen(int64_t row, int32_t id) const {
    return (seen[row * seen_words(vocab_size) + id / 32] >> (id % 32) & 1) != 0;
  }
  void set(int64_t row, int32_t id, float x) { logits.set(row * stride + id, x); }

  // What the CPU chooses; -1 where a logit is NaN. Marks the choice as seen, as the launch does.
  int32_t choose_on_cpu(int64_t row) {
    const TokenRule& rule = rules[row];
    std::vector<float> scratch(vocab_size);
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < vocab_size; ++id) {
      scratch[id] = logits.get(row * stride + id);
      if (rule.repetition_penalty != 1 && has_seen(row, id)) ids.push_back(id);
    }
    const int32_t id = sampler.choose(
        scratch,
        {.temperature = rule.temperature, .top_p = rule.top_p, .repetition_penalty = rule.repetition_penalty},
        ids,
        {.key = draws[row].key,
         .question = draws[row].question,
         .layer = kTokenLayer,
         .position = static_cast<uint32_t>(positions[row])});
    if (id >= 0) see(row, id);
    return id;
  }

  DType dtype;
  int64_t rows;
  int32_t vocab_size;
  int64_t stride;
  Elements logits;  // [rows, stride], NaN in the gap
  std::vector<TokenRule> rules;
  std::vector<SequenceDraws> draws;
  std::vector<int32_t> positions;
  std::vector<uint32_t> seen;
  model::TokenSampler sampler;
};

// What a launch leaves.
struct ChosenTokens {
  std::vector<int32_t> chosen;
  std::vector<uint32_t> seen;
  int32_t fault = kNoFaultyRow;
};

// Every active row as on the CPU; what the launch must leave alone, left alone. `how` names the launch.
inline void expect_as_on_cpu(Batch& batch, const ChosenTokens& result, const std::string& how) {
  int32_t fault = kNoFaultyRow;
  for (int64_t row = 0; row < batch.rows; ++row) {
    const TokenRule& rule = batch.rules[row];
    const int32_t expected = rule.active == 0 ? kOldToken : batch.choose_on_cpu(row);
    if (expected == -1) fault = std::min(fault, static_cast<int32_t>(row));
    ASSERT_EQ(result.chosen[row], expected)
        << "row " << row << " of " << batch.rows << " x " << batch.vocab_size << " " << name(batch.dtype)
        << ", temperature " << rule.temperature << ", top_p " << rule.top_p << ", penalty "
        << rule.repetition_penalty << ", " << how;
  }
  ASSERT_EQ(result.seen, batch.seen);
  ASSERT_EQ(result.fault, fault);
}

// Rows of every kind: wide and narrow, with ties, with masked tokens, under every kind of rule.
inline Batch random_batch(DType dtype, int64_t rows, int32_t vocab_size, uint32_t seed) {
  Batch batch(dtype, rows, vocab_size);
  std::mt19937 random(seed);
  const auto one_of = [&](std::initializer_list<float> values) {
    return values.begin()[random() % values.size()];
  };
  for (int64_t row = 0; row < rows; ++row) {
    batch.rules[row] = {.temperature = one_of({0, 0.3f, 0.6f, 0.6f, 1, 2, 50, 1e-30f}),
                        .top_p = one_of({1e-9f, 0.1f, 0.5f, 0.9f, 0.95f, 0.9999f, 1}),
                        .repetition_penalty = one_of({1, 1, 1.1f, 2, 0.8f}),
                        .active = random() % 8 != 0};
    const float deviation = one_of({0, 1e-4f, 0.02f, 1.3f, 3, 12});
    const float mean = one_of({0, -5, 10});
    const bool masked = random() % 4 == 0;
    std::normal_distribution<float> normal(mean, deviation);
    for (int32_t id = 0; id < vocab_size; ++id) {
      batch.set(row, id, masked && random() % 3 == 0 ? -INFINITY : deviation == 0 ? mean : normal(random));
    }
    for (int i = 0; i < 50; ++i) batch.see(row, static_cast<int32_t>(random() % vocab_size));
  }
  return batch;
}

// Of most edge_batches(), and of those that need several chunks of a row.
inline constexpr int32_t kEdgeVocab = 3001, kLargeEdgeVocab = 50'001;

struct NamedBatch {
  std::string name;
  Batch batch;
};

// bfloat16 rows in which values, parameters or seen tokens are at an edge of what can be counted by value
// (kernels/cuda/rows/token_counts.cuh), each row with a draw of its own.
inline std::vector<NamedBatch> edge_batches() {
  constexpr int64_t kRows = 6;
  constexpr float kSome[] = {0.05f, 0.3f, 0.7f, 0.95f, 0.9999999f, 1};
  std::vector<NamedBatch> batches;
  std::mt19937 random(77);
  const auto add = [&](std::string name, const TokenRule& rule, const auto& logit,
                       int32_t vocab_size = kEdgeVocab) -> Batch& {
    batches.push_back({std::move(name), Batch(DType::kBFloat16, kRows, vocab_size)});
    Batch& batch = batches.back().batch;
    for (int64_t row = 0; row < kRows; ++row) {
      batch.rules[row] = rule;
      if (rule.top_p == 0) batch.rules[row].top_p = kSome[row];
      for (int32_t id = 0; id < vocab_size; ++id) batch.set(row, id, logit(id));
    }
    return batch;
  };
  const auto one_of = [&](const std::vector<float>& values) { return values[random() % values.size()]; };
  std::normal_distribution<float> normal(0, 1.3f);
  const TokenRule warm = {.temperature = 0.6f, .top_p = 0, .active = 1};

  const std::vector<float> near_zero = {0,         -0.0f,       0x1p-24f,  -0x1p-24f, 0x1.fep-24f, 0x1p-23f,
                                        -0x1p-23f, 0x1.02p-23f, 0x1p-133f, -0x1p-60f, 0x1p-12f,    -0x1p-12f};
  for (const float largest : {2.0f, 2.015625f, -0.0f, 20.0f, 0x1p-40f}) {
    add("values near zero below " + std::to_string(largest), warm,
        [&](int32_t id) { return id == 1777 ? largest : std::min(one_of(near_zero), largest); });
  }
  for (const float all : {0.0f, 2.5f, -7.0f, 300.0f, -1e30f, 0x1p-30f}) {
    add(
        "all equal " + std::to_string(all), warm, [&](int32_t) { return all; }, kLargeEdgeVocab);
  }
  for (const float largest : {255.0f, 256.0f, 1e5f}) {
    add("magnitudes to " + std::to_string(largest), {.temperature = 40, .top_p = 0, .active = 1},
        [&](int32_t id) {
          return id == 5 ? largest : one_of({-255, 254, 255, 100, 3});
        });
  }
  add("negative magnitudes from 256 on", {.temperature = 40, .top_p = 0, .active = 1}, [&](int32_t) {
    return one_of({-255, -256, -300, -1e30f});
  });
  add("masked tokens", warm, [&](int32_t) { return random() % 3 == 0 ? -INFINITY : normal(random); });
  add("infinite logits", warm, [&](int32_t id) { return id % 1000 == 999 ? INFINITY : normal(random); });
  add("only minus infinity", warm, [&](int32_t) { return -INFINITY; });
  for (const float nan : {std::nanf(""), -std::nanf("")}) {
    add("a NaN", warm, [&](int32_t id) { return id == 3000 ? nan : normal(random); });
  }
  for (const float temperature : {1e-30f, 1e-3f, 0.05f, 300.0f, 1e30f}) {
    add("temperature " + std::to_string(temperature), {.temperature = temperature, .top_p = 0, .active = 1},
        [&](int32_t) { return normal(random); });
  }
  // Weights of a few units, which many values share.
  add("threshold among the lightest", {.temperature = 0.6f, .top_p = 0.9999999f, .active = 1},
      [&](int32_t id) { return id == 9 ? 6.0f : normal(random) - 6.5f; });
  NamedBatch ties = {"ties in every chunk", Batch(DType::kBFloat16, 32, kLargeEdgeVocab)};
  for (int64_t row = 0; row < ties.batch.rows; ++row) {
    ties.batch.rules[row] = {.temperature = 1, .top_p = 0.97f, .active = 1};
    for (int32_t id = 0; id < kLargeEdgeVocab; ++id) ties.batch.set(row, id, one_of({3, 2.5f, 2.5f, 2.5f}));
  }
  batches.push_back(std::move(ties));
  // Halves and doubles of values are values, too: ties of seen and other tokens.
  for (const float penalty : {2.0f, 0.5f, 1.1f, 1e30f, 1e-30f, 1e-38f}) {
    Batch& batch = add(
        "seen tokens, penalty " + std::to_string(penalty),
        {.temperature = 0.9f, .top_p = 0, .repetition_penalty = penalty, .active = 1},
        [&](int32_t) {
          return one_of({4, 2, 1, 0.5f, -0.5f, -1, 0x1.04p0f, 2.25f});
        },
        kLargeEdgeVocab);
    for (int64_t row = 0; row < kRows; ++row) {
      for (int32_t id = 0; id < kLargeEdgeVocab; ++id) {
        if (random() % 8 == 0) batch.see(row, id);
      }
    }
  }
  for (const float penalty : {1.5f, 0.3f, 100.0f, 1e-6f}) {
    Batch& zeros = add(
        "seen tokens near zero, penalty " + std::to_string(penalty),
        {.temperature = 1, .top_p = 0, .repetition_penalty = penalty, .active = 1},
        [&](int32_t id) { return id % 2 == 0 ? std::clamp(one_of(near_zero), -0x1p-13f, 0x1p-13f) : 4.5f; });
    for (int64_t row = 0; row < kRows; ++row) {
      for (int32_t id = 0; id < 600; ++id) zeros.see(row, 2 * id);
    }
  }
  Batch& gap = add("large numbers after the vocabulary", warm, [&](int32_t) { return normal(random); });
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t at = kEdgeVocab; at < gap.stride; ++at) gap.logits.set(row * gap.stride + at, 3.0f);
  }
  for (const int32_t seen : {4096, 5000, 8191, 8192, 10'000}) {
    NamedBatch many = {std::to_string(seen) + " seen tokens", Batch(DType::kBFloat16, 2, 20'001)};
    for (int64_t row = 0; row < 2; ++row) {
      many.batch.rules[row] = {.temperature = 0.6f, .top_p = 0.9f, .repetition_penalty = 1.1f, .active = 1};
      for (int32_t id = 0; id < many.batch.vocab_size; ++id) many.batch.set(row, id, normal(random));
      for (int32_t i = 0; i < seen; ++i) many.batch.see(row, 2 * i + static_cast<int32_t>(row));
    }
    batches.push_back(std::move(many));
  }
  return batches;
}

}  // namespace allot::kernels::testing
