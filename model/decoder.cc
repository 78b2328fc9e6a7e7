#include "model/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>

#include "base/round_up.h"
#include "kernels/bfloat16.h"
#include "kernels/cache_rounding.h"
#include "kernels/rows.h"
#include "model/parallel.h"
#include "model/random_weights.h"

namespace allot::model {
namespace {

// Most rows of a block: its activations stay in a core's level-2 cache from one product to the next.
constexpr int64_t kMaxBlockRows = 256;

// Threads share the row operations of a block that has at least this many rows; for fewer, waking
// them costs more.
constexpr int64_t kMinSharedRows = 64;

bool fits_one_thread(const ModelConfig& config, kernels::DType dtype) {
  const int64_t widest =
      std::max<int64_t>({2 * config.intermediate_size, config.vocab_size, config.hidden_size});
  return widest * config.hidden_size * kernels::size_of(dtype) <= kMaxPrivateMatrixBytes;
}

}  // namespace

Decoder::Decoder(const ModelConfig& config, DecoderWeights weights, const KvCacheShape& cache,
                 int64_t max_tokens, int threads, const ModelRank& rank)
    : config_(config),
      weights_(std::move(weights)),
      cache_(cache),
      rope_(config),
      rank_(rank),
      max_tokens_(round_up(max_tokens, kMaxBlockRows)),
      threads_(threads),
      q_width_(int64_t{config.num_q_heads} * config.head_dim),
      qkv_width_(q_width_ + int64_t{2} * config.num_kv_heads * config.head_dim),
      // Ranks meet in one order only.
      blocks_in_parallel_(rank.collective == nullptr && fits_one_thread(config, cache.dtype)),
      scratch_(threads) {
  const int64_t size = kernels::size_of(cache_.shape().dtype);
  residual_ = Buffer(max_tokens_ * config_.hidden_size * size);
  qkv_ = Buffer(max_tokens_ * qkv_width_ * size);
  attended_ = Buffer(max_tokens_ * q_width_ * size);
  const int64_t rows = blocks_in_parallel_ ? kMaxBlockRows : max_tokens_;
  for (Scratch& scratch : scratch_) {
    scratch.hidden = Buffer(rows * config_.hidden_size * size);
    scratch.gate_up = Buffer(rows * 2 * config_.intermediate_size * size);
    scratch.activated = Buffer(rows * config_.intermediate_size * size);
    scratch.logits = Buffer(rows * config_.vocab_size * size);
  }
}

std::span<float> Decoder::forward(const ForwardBatch& batch, const kernels::AttentionMethod& attention) {
  const int64_t outputs = static_cast<int64_t>(batch.output_rows.size());
  const int64_t logits_bytes = round_up(outputs, kMaxBlockRows) * config_.vocab_size * int64_t{sizeof(float)};
  if (logits_.size() < logits_bytes) logits_ = Buffer(logits_bytes);
  run(batch, attention, {}, [&](const Block& block) { project_logits(block); });
  return {logits_.as<float>(), static_cast<size_t>(outputs * config_.vocab_size)};
}

void Decoder::forward_states(const ForwardBatch& batch, const kernels::AttentionMethod& attention,
                             std::byte* states, std::span<int64_t> rows_read) {
  const int64_t row_bytes = config_.hidden_size * kernels::size_of(cache_.shape().dtype);
  run(batch, attention, rows_read, [&](const Block& block) {
    std::memcpy(states + block.begin * row_bytes, block.scratch.hidden.data(),
                static_cast<size_t>(block.rows() * row_bytes));
  });
}

void Decoder::run(const ForwardBatch& batch, const kernels::AttentionMethod& attention,
                  std::span<int64_t> rows_read, const std::function<void(const Block&)>& finish) {
  rope_.extend_to(*std::max_element(batch.lengths.begin(), batch.lengths.end()));
  for_each_block(batch.num_tokens(), [&](const Block& block) {
    embed(batch, block);
    normalise({.weight = weights_.layers[0].input_norm, .int8_grid = int8_inputs()}, block);
    project_qkv(0, batch, block);
  });

  // Attention of the rows in these layers, whose counts are added up by sequence.
  const auto attend_layers = [&](std::span<const int64_t> rows, int32_t begin, int32_t end,
                                 const std::function<void(int32_t)>& after) {
    const AttentionPlan plan(batch, rows, threads_);
    const bool counts = !rows_read.empty() || !rows_by_layer_.empty();
    std::vector<int64_t> of_runs(counts ? plan.runs().size() : 0);
    for (int32_t layer = begin; layer < end; ++layer) {
      const int64_t before = std::reduce(of_runs.begin(), of_runs.end());
      attend(layer, plan, attention, of_runs.empty() ? nullptr : of_runs.data());
      if (!rows_by_layer_.empty())
        rows_by_layer_[layer] += std::reduce(of_runs.begin(), of_runs.end()) - before;
      after(layer);
    }
    if (rows_read.empty()) return;
    for (size_t i = 0; i < of_runs.size(); ++i) rows_read[plan.runs()[i].sequence] += of_runs[i];
  };
  std::vector<int64_t> all_rows(batch.tokens.size());
  std::iota(all_rows.begin(), all_rows.end(), 0);
  const int32_t last = config_.num_layers - 1;
  attend_layers(all_rows, 0, last, [&](int32_t layer) {
    for_each_block(batch.num_tokens(), [&](const Block& block) {
      finish_layer(layer, block);
      normalise(
          {.weight = weights_.layers[layer + 1].input_norm, .adds_hidden = true, .int8_grid = int8_inputs()},
          block);
      project_qkv(layer + 1, batch, block);
    });
  });

  // Every key and value is in the cache now: the rest is needed only for the output rows.
  const int64_t outputs = static_cast<int64_t>(batch.output_rows.size());
  if (outputs == 0) return;
  keep_rows(batch.output_rows);
  attend_layers(batch.output_rows, last, last + 1, [&](int32_t layer) {
    for_each_block(outputs, [&](const Block& block) {
      finish_layer(layer, block);
      normalise({.weight = weights_.final_norm, .adds_hidden = true}, block);
      finish(block);
    });
  });
}

void Decoder::fill_cache_at_random() {
  run_parallel(int64_t{2} * config_.num_layers, threads_, [&](int64_t index, int) {
    const auto layer = static_cast<int32_t>(index / 2);
    void* const memory = index % 2 == 0 ? cache_.keys(layer) : cache_.values(layer);
    const RandomTensor tensor = random_tensor(/*seed=*/0, "kv_cache." + std::to_string(index), 1);
    const auto count = static_cast<size_t>(cache_.layer_bytes() / kernels::size_of(cache_.shape().dtype));
    if (cache_.shape().dtype == kernels::DType::kFloat32) {
      fill_random(tensor, 0, {static_cast<float*>(memory), count});
    } else {
      fill_random_bfloat16(tensor, 0, {static_cast<uint16_t*>(memory), count});
    }
    if (index % 2 == 1) set_value_norms(layer);
  });
}

void Decoder::set_value_norms(int32_t layer) {
  const int64_t dim = config_.head_dim;
  const bool wide = cache_.shape().dtype == kernels::DType::kFloat32;
  const auto* const floats = static_cast<const float*>(cache_.values(layer));
  const auto* const halves = static_cast<const uint16_t*>(cache_.values(layer));
  for (int64_t vector = 0; vector < layer_vectors(cache_.shape()); ++vector) {
    float squares = 0;
    for (int64_t i = vector * dim; i < (vector + 1) * dim; ++i) {
      const float x = wide ? floats[i] : kernels::float_from_bfloat16(halves[i]);
      squares += x * x;
    }
    cache_.value_norms(layer)[vector] = std::sqrt(squares);
  }
}

void Decoder::for_each_block(int64_t rows, const std::function<void(const Block&)>& work) {
  const int64_t even = round_up((rows + threads_ - 1) / threads_, kRowGroup);
  const int64_t block_rows = std::min(even, kMaxBlockRows);
  const int64_t blocks = (rows + block_rows - 1) / block_rows;
  if (!blocks_in_parallel_ || blocks == 1) {
    work({.begin = 0, .end = rows, .threads = threads_, .scratch = scratch_[0]});
    return;
  }
  run_parallel(blocks, threads_, [&](int64_t index, int worker) {
    const int64_t begin = index * block_rows;
    work({.begin = begin,
          .end = std::min(begin + block_rows, rows),
          .threads = 1,
          .scratch = scratch_[worker]});
  });
}

void Decoder::for_each_part(const Block& block, const std::function<void(const Part&)>& work) const {
  const int64_t parts = block.rows() < kMinSharedRows ? 1 : block.threads;
  const int64_t part_rows = (block.rows() + parts - 1) / parts;
  run_parallel(parts, block.threads, [&](int64_t index, int) {
    const int64_t first = index * part_rows;
    if (first < block.rows()) work({.first = first, .rows = std::min(part_rows, block.rows() - first)});
  });
}

void Decoder::embed(const ForwardBatch& batch, const Block& block) {
  for_each_part(block, [&](const Part& part) {
    const int64_t begin = block.begin + part.first;
    kernels::gather_embeddings({.tokens = part.rows,
                                .width = config_.hidden_size,
                                .vocab_size = config_.vocab_size,
                                .dtype = cache_.shape().dtype,
                                .table = weights_.embedding->data(),
                                .ids = batch.tokens.data() + begin,
                                .out = row(residual_, begin, config_.hidden_size)},
                               1);
  });
}

// scratch.hidden = norm(residual), preceded by residual += scratch.hidden when asked for.
void Decoder::normalise(const NormStep& step, const Block& block) {
  for_each_part(block, [&](const Part& part) {
    std::byte* residual = row(residual_, block.begin + part.first, config_.hidden_size);
    std::byte* hidden = row(block.scratch.hidden, part.first, config_.hidden_size);
    kernels::rms_norm({.rows = part.rows,
                       .width = config_.hidden_size,
                       .dtype = cache_.shape().dtype,
                       .epsilon = static_cast<float>(config_.rms_norm_eps),
                       .input = step.adds_hidden ? hidden : residual,
                       .residual = step.adds_hidden ? residual : nullptr,
                       .weight = step.weight.data(),
                       .out = hidden,
                       .int8_grid = step.int8_grid},
                      1);
  });
}

void Decoder::normalise_rows(const Buffer& weight, const Block& block, int64_t width, std::byte* rows) const {
  for_each_part(block, [&](const Part& part) {
    std::byte* const first = rows + part.first * width * kernels::size_of(cache_.shape().dtype);
    kernels::rms_norm({.rows = part.rows,
                       .width = static_cast<int32_t>(width),
                       .dtype = cache_.shape().dtype,
                       .epsilon = static_cast<float>(config_.rms_norm_eps),
                       .input = first,
                       .weight = weight.data(),
                       .out = first,
                       .int8_grid = int8_inputs()},
                      1);
  });
}

void Decoder::project_qkv(int32_t layer, const ForwardBatch& batch, const Block& block) {
  const LayerWeights& weights = weights_.layers[layer];
  weights.qkv.apply(block.scratch.hidden.data(), block.rows(), row(qkv_, block.begin, qkv_width_),
                    block.threads);
  for_each_part(block, [&](const Part& part) {
    const int64_t begin = block.begin + part.first;
    kernels::rotate_and_store({.tokens = part.rows,
                               .num_q_heads = config_.num_q_heads,
                               .num_kv_heads = config_.num_kv_heads,
                               .head_dim = config_.head_dim,
                               .dtype = cache_.shape().dtype,
                               .qkv = row(qkv_, begin, qkv_width_),
                               .qkv_stride = qkv_width_,
                               .bias = weights.qkv_bias.data(),
                               .q_norm = weights.q_norm.data(),
                               .k_norm = weights.k_norm.data(),
                               .norm_epsilon = static_cast<float>(config_.rms_norm_eps),
                               .cos = rope_.cos(),
                               .sin = rope_.sin(),
                               .table_rows = rope_.rows(),
                               .positions = batch.positions.data() + begin,
                               .key_pages = cache_.keys(layer),
                               .value_pages = cache_.values(layer),
                               .value_norms = cache_.value_norms(layer),
                               .num_pages = cache_.shape().num_pages,
                               .page_size = cache_.shape().page_size,
                               .slots = batch.slots.data() + begin},
                              1);
    if (!batch.simulated_cache.any()) return;
    kernels::round_cache({.tokens = part.rows,
                          .num_kv_heads = config_.num_kv_heads,
                          .head_dim = config_.head_dim,
                          .dtype = cache_.shape().dtype,
                          .formats = batch.simulated_cache,
                          .key_pages = cache_.keys(layer),
                          .value_pages = cache_.values(layer),
                          .value_norms = cache_.value_norms(layer),
                          .num_pages = cache_.shape().num_pages,
                          .page_size = cache_.shape().page_size,
                          .slots = batch.slots.data() + begin});
  });
}

// Computes the layer's output from that of its attention. It stays in scratch.hidden for the next norm, which
// adds it to the residual.
void Decoder::finish_layer(int32_t layer, const Block& block) {
  const LayerWeights& weights = weights_.layers[layer];
  Scratch& scratch = block.scratch;
  std::byte* const attended = row(attended_, block.begin, q_width_);
  if (config_.sub_norms) normalise_rows(weights.attention_sub_norm, block, q_width_, attended);
  weights.attention_output.apply(attended, block.rows(), scratch.hidden.data(), block.threads);
  sum_over_ranks(block);
  normalise({.weight = weights.post_attention_norm, .adds_hidden = true, .int8_grid = int8_inputs()}, block);
  weights.gate_up.apply(scratch.hidden.data(), block.rows(), scratch.gate_up.data(), block.threads);
  for_each_part(block, [&](const Part& part) {
    kernels::activate_and_multiply(
        {.rows = part.rows,
         .width = config_.intermediate_size,
         .dtype = cache_.shape().dtype,
         .activation = config_.activation,
         .gate_up = row(scratch.gate_up, part.first, 2 * config_.intermediate_size),
         .out = row(scratch.activated, part.first, config_.intermediate_size)},
        1);
  });
  if (config_.sub_norms)
    normalise_rows(weights.mlp_sub_norm, block, config_.intermediate_size, scratch.activated.data());
  weights.down.apply(scratch.activated.data(), block.rows(), scratch.hidden.data(), block.threads);
  sum_over_ranks(block);
}

void Decoder::sum_over_ranks(const Block& block) {
  if (rank_.collective == nullptr) return;
  rank_.collective->sum(block.scratch.hidden.data(), block.rows() * config_.hidden_size, cache_.shape().dtype,
                        nullptr);
}

void Decoder::project_logits(const Block& block) {
  float* out = logits_.as<float>() + block.begin * config_.vocab_size;
  const std::byte* hidden = block.scratch.hidden.data();
  if (cache_.shape().dtype == kernels::DType::kFloat32) {
    weights_.output_head.apply(hidden, block.rows(), out, block.threads);
    return;
  }
  weights_.output_head.apply(hidden, block.rows(), block.scratch.logits.data(), block.threads);
  const uint16_t* rounded = block.scratch.logits.as<uint16_t>();
  std::transform(rounded, rounded + block.rows() * config_.vocab_size, out, kernels::float_from_bfloat16);
}

void Decoder::attend(int32_t layer, const AttentionPlan& plan, const kernels::AttentionMethod& method,
                     int64_t* rows_read) {
  kernels::AttentionParams shared{.num_q_heads = config_.num_q_heads,
                                  .num_kv_heads = config_.num_kv_heads,
                                  .head_dim = config_.head_dim,
                                  .page_size = cache_.shape().page_size,
                                  .num_pages = cache_.shape().num_pages,
                                  .dtype = cache_.shape().dtype,
                                  .scale = 1 / std::sqrt(static_cast<float>(config_.head_dim)),
                                  .query_stride = qkv_width_,
                                  .key_pages = cache_.keys(layer),
                                  .value_pages = cache_.values(layer),
                                  .value_norms = cache_.value_norms(layer),
                                  .layer = static_cast<uint32_t>(layer),
                                  .first_head = rank_.split.rank * config_.num_q_heads};
  if (!plan.all_dense(layer)) shared.method = method;
  const std::span<const AttentionPlan::Launch> launches = plan.launches();
  run_parallel(static_cast<int64_t>(launches.size()), threads_, [&](int64_t index, int) {
    kernels::AttentionParams params = shared;
    plan.describe(launches[index], layer, params);
    params.query = row(qkv_, launches[index].first_row, qkv_width_);
    params.out = row(attended_, launches[index].first_row, q_width_);
    if (rows_read != nullptr) params.rows_read = rows_read + launches[index].first_run;
    const auto head_budgets = plan.head_budgets(launches[index], layer);
    if (head_budgets.empty()) {
      kernels::attend_cpu(params, 1);
    } else {
      attend_by_head(params, head_budgets);
    }
  });
}

// Attention of each budget for all heads, of which those that have the budget are kept: their draws do not
// depend on other heads, and schedules by KV head are for experiments, which may take longer. Rows that are
// read are not counted.
void Decoder::attend_by_head(kernels::AttentionParams params,
                             std::span<const AttentionPlan::HeadBudgets> head_budgets) const {
  const int64_t rows = params.query_start[params.batch];
  const int64_t size = kernels::size_of(cache_.shape().dtype);
  const int64_t row_bytes = q_width_ * size, head_bytes = row_bytes / config_.num_kv_heads;
  auto* const out = static_cast<std::byte*>(params.out);
  Buffer other(rows * row_bytes);
  params.rows_read = nullptr;
  for (const AttentionPlan::HeadBudgets& one : head_budgets) {
    const bool is_first = &one == head_budgets.data();
    params.budgets = one.budgets.data();
    params.out = is_first ? static_cast<void*>(out) : other.data();
    kernels::attend_cpu(params, 1);
    if (is_first) continue;
    for (int64_t row = 0; row < rows; ++row)
      for (const int32_t head : one.kv_heads)
        std::memcpy(out + row * row_bytes + head * head_bytes,
                    other.data() + row * row_bytes + head * head_bytes, static_cast<size_t>(head_bytes));
  }
}

// Moves the residual and query of `rows` (ascending) to rows 0, 1, ….
void Decoder::keep_rows(std::span<const int64_t> rows) {
  const size_t size = kernels::size_of(cache_.shape().dtype);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] == static_cast<int64_t>(i)) continue;
    std::memcpy(row(residual_, i, config_.hidden_size), row(residual_, rows[i], config_.hidden_size),
                config_.hidden_size * size);
    std::memcpy(row(qkv_, i, qkv_width_), row(qkv_, rows[i], qkv_width_), q_width_ * size);
  }
}

}  // namespace allot::model
