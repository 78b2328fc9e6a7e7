// A decoder of any supported architecture as one reads it in a paper: double precision, one sequence, no
// cache, no batching, attention by kernels::reference with the engine's draw coordinates. Slow; for small
// checkpoints.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "episode/samples.h"
#include "kernels/bfloat16.h"
#include "kernels/cache_rounding.h"
#include "kernels/reference.h"
#include "model/model_config.h"
#include "model/rope.h"
#include "model/safetensors.h"

namespace allot::model {

struct ReferenceRun {
  kernels::Estimator estimator = kernels::Estimator::kExact;
  std::vector<int32_t> samples;  // per layer
  int64_t dense_prefix = 0;      // positions that attend exactly whatever `samples` says
  DrawKey key;
  uint32_t question = 0;
  int32_t tile = 256;
  kernels::CacheFormats cache = {};  // what keys and values are rounded to
};

class ReferenceDecoder {
 public:
  explicit ReferenceDecoder(const std::filesystem::path& directory)
      : config_(read_model_config(directory)), checkpoint_(Checkpoint::open(directory)) {}

  // Logits of every position [ids.size()][vocab_size].
  std::vector<std::vector<double>> logits(std::span<const int32_t> ids, const ReferenceRun& run) const {
    const Matrix embedding = matrix("model.embed_tokens.weight");
    Rows states;
    for (int32_t id : ids) states.push_back(embedding[id]);
    for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      const Rows attended = attend(layer, norm(states, prefix + "input_layernorm"), run);
      add(states, linear(attended, prefix + "self_attn.o_proj"));
      const Rows input = norm(states, prefix + "post_attention_layernorm");
      Rows gate = linear(input, prefix + "mlp.gate_proj");
      const Rows up = linear(input, prefix + "mlp.up_proj");
      for (size_t t = 0; t < gate.size(); ++t) {
        for (size_t i = 0; i < gate[t].size(); ++i) gate[t][i] *= up[t][i] / (1 + std::exp(-gate[t][i]));
      }
      add(states, linear(gate, prefix + "mlp.down_proj"));
    }
    const bool tied = config_.tie_word_embeddings;
    return linear(norm(states, "model.norm"), tied ? "model.embed_tokens" : "lm_head");
  }

 private:
  using Row = std::vector<double>;
  using Rows = std::vector<Row>;
  using Matrix = std::vector<Row>;

  Row vector(const std::string& name) const {
    const TensorView& tensor = checkpoint_.at(name);
    Row values;
    if (tensor.dtype == TensorDType::kF32) {
      for (size_t at = 0; at < tensor.bytes.size(); at += 4) {
        float value;
        std::memcpy(&value, tensor.bytes.data() + at, 4);
        values.push_back(value);
      }
    } else {
      for (size_t at = 0; at < tensor.bytes.size(); at += 2) {
        uint16_t bits;
        std::memcpy(&bits, tensor.bytes.data() + at, 2);
        values.push_back(kernels::float_from_bfloat16(bits));
      }
    }
    return values;
  }

  Matrix matrix(const std::string& name) const {
    const Row flat = vector(name);
    const int64_t columns = checkpoint_.at(name).shape[1];
    Matrix rows;
    for (auto at = flat.begin(); at != flat.end(); at += columns) rows.emplace_back(at, at + columns);
    return rows;
  }

  Rows linear(const Rows& input, const std::string& name) const {
    const Matrix weight = matrix(name + ".weight");
    const Row bias = checkpoint_.contains(name + ".bias") ? vector(name + ".bias") : Row(weight.size(), 0);
    Rows output;
    for (const Row& x : input) {
      Row y = bias;
      for (size_t o = 0; o < weight.size(); ++o) {
        for (size_t i = 0; i < x.size(); ++i) y[o] += weight[o][i] * x[i];
      }
      output.push_back(std::move(y));
    }
    return output;
  }

  Rows norm(const Rows& input, const std::string& name) const {
    const Row weight = vector(name + ".weight");
    Rows output = input;
    for (Row& x : output) normalise(x, weight);
    return output;
  }

  void normalise(std::span<double> x, const Row& weight) const {
    double sum = 0;
    for (double value : x) sum += value * value;
    const double scale = 1 / std::sqrt(sum / static_cast<double>(x.size()) + config_.rms_norm_eps);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= scale * weight[i];
  }

  void normalise_heads(Rows& rows, const std::string& name) const {
    const Row weight = vector(name + ".weight");
    for (Row& row : rows) {
      for (size_t head = 0; head < row.size(); head += weight.size())
        normalise(std::span(row).subspan(head, weight.size()), weight);
    }
  }

  static void add(Rows& to, const Rows& from) {
    for (size_t t = 0; t < to.size(); ++t) {
      for (size_t i = 0; i < to[t].size(); ++i) to[t][i] += from[t][i];
    }
  }

  // Rotates every head of `row` for `position`.
  void rotate(Row& row, int64_t position) const {
    const std::vector<float> frequencies = rope_frequencies(config_);
    const size_t half = frequencies.size();
    for (size_t head = 0; head < row.size(); head += 2 * half) {
      for (size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * frequencies[i];
        const double a = row[head + i], b = row[head + half + i];
        row[head + i] = a * std::cos(angle) - b * std::sin(angle);
        row[head + half + i] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }

  Rows attend(int32_t layer, const Rows& input, const ReferenceRun& run) const {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".self_attn.";
    Rows q = linear(input, prefix + "q_proj"), k = linear(input, prefix + "k_proj");
    const Rows v = linear(input, prefix + "v_proj");
    if (checkpoint_.contains(prefix + "q_norm.weight")) {
      normalise_heads(q, prefix + "q_norm");
      normalise_heads(k, prefix + "k_norm");
    }
    const int32_t length = static_cast<int32_t>(input.size());
    const int32_t dim = config_.head_dim;
    // One page holds the sequence: [num_kv_heads, length, head_dim].
    std::vector<float> query, keys(k.size() * k[0].size()), values(keys.size());
    for (int32_t t = 0; t < length; ++t) {
      rotate(q[t], t);
      rotate(k[t], t);
      query.insert(query.end(), q[t].begin(), q[t].end());
      for (size_t i = 0; i < k[t].size(); ++i) {
        const size_t at = (i / dim * length + t) * dim + i % dim;
        keys[at] = static_cast<float>(k[t][i]);
        values[at] = static_cast<float>(v[t][i]);
      }
    }
    for (size_t at = 0; at < keys.size(); at += static_cast<size_t>(dim)) {
      kernels::round_row(std::span(keys).subspan(at, static_cast<size_t>(dim)), run.cache.keys);
      kernels::round_row(std::span(values).subspan(at, static_cast<size_t>(dim)), run.cache.values);
    }
    // Each query is a launch sequence of its own, so that a prefix may be dense.
    std::vector<int32_t> page_table(length, 0), lengths;
    std::vector<int64_t> query_start{0};
    for (int32_t t = 0; t < length; ++t) {
      query_start.push_back(t + 1);
      lengths.push_back(t + 1);
    }
    const std::vector<kernels::SequenceDraws> draws(length, {run.key, run.question});
    std::vector<float> out(query.size());
    const auto attend = [&](int32_t samples) {
      std::vector<int32_t> budgets;
      for (int32_t t = 0; t < length; ++t)
        budgets.push_back(samples == kExactLayer || t < run.dense_prefix ? kernels::kDenseBudget : samples);
      return kernels::reference::attend({.batch = length,
                                         .num_q_heads = config_.num_q_heads,
                                         .num_kv_heads = config_.num_kv_heads,
                                         .head_dim = dim,
                                         .page_size = length,
                                         .max_pages = 1,
                                         .num_pages = 1,
                                         .scale = 1 / std::sqrt(static_cast<float>(dim)),
                                         .query = query.data(),
                                         .query_stride = static_cast<int64_t>(q[0].size()),
                                         .key_pages = keys.data(),
                                         .value_pages = values.data(),
                                         .page_table = page_table.data(),
                                         .query_start = query_start.data(),
                                         .lengths = lengths.data(),
                                         .out = out.data(),
                                         .method = {.estimator = run.estimator, .tile = run.tile},
                                         .budgets = budgets.data(),
                                         .draws = draws.data(),
                                         .layer = static_cast<uint32_t>(layer)});
    };
    // Of [layers, num_kv_heads] samples each KV head's, from a whole attention by its number.
    const size_t heads = run.samples.size() / static_cast<size_t>(config_.num_layers);
    std::vector<double> flat = attend(heads == 0 ? kExactLayer : run.samples[layer * heads]);
    const size_t width = q[0].size() / static_cast<size_t>(config_.num_kv_heads);
    for (size_t head = 1; head < heads; ++head) {
      const std::vector<double> other = attend(run.samples[layer * heads + head]);
      for (size_t i = 0; i < flat.size(); ++i)
        if (i % q[0].size() / width == head) flat[i] = other[i];
    }
    Rows rows;
    for (auto at = flat.begin(); at != flat.end(); at += static_cast<int64_t>(q[0].size())) {
      rows.emplace_back(at, at + static_cast<int64_t>(q[0].size()));
    }
    return rows;
  }

  ModelConfig config_;
  Checkpoint checkpoint_;
};

}  // namespace allot::model
