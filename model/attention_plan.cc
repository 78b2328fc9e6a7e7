#include "model/attention_plan.h"

#include <algorithm>

#include "episode/samples.h"

namespace allot::model {
namespace {

// Most queries of a run: enough for the kernel to reuse a key, few enough to balance threads.
constexpr int32_t kMaxRunQueries = 128;
// Launches per thread: enough that waiting for the last one takes only a small part of the whole time.
constexpr int64_t kLaunchesPerThread = 4;

std::vector<QueryRun> cut_into_runs(const ForwardBatch& batch, std::span<const int64_t> rows) {
  std::vector<QueryRun> runs;
  int64_t sequence = 0;
  int64_t previous = -1;
  for (int64_t row : rows) {
    const bool follows = !runs.empty() && row == previous + 1 && row < batch.query_start[sequence + 1];
    // A single last query joins the full run before it, see prefill_tokens.
    const bool is_last = row + 1 == batch.query_start[sequence + 1];
    const bool continues = follows && (runs.back().queries < kMaxRunQueries || is_last);
    if (continues) {
      ++runs.back().queries;
      ++runs.back().length;
    } else {
      while (row >= batch.query_start[sequence + 1]) ++sequence;
      const int64_t after = batch.query_start[sequence + 1] - 1 - row;
      runs.push_back({.sequence = sequence,
                      .queries = 1,
                      .length = static_cast<int32_t>(batch.lengths[sequence] - after)});
    }
    previous = row;
  }
  return runs;
}

int64_t cost(const QueryRun& run) {
  return int64_t{run.queries} * run.length;
}

// How many entries the part's schedule has for a layer; 0 for one without a schedule.
size_t heads_of(const SequencePart& part, int32_t num_layers) {
  return part.samples.size() / static_cast<size_t>(num_layers);
}

// Where a part has budgets for KV heads, sets those of all.
void set_head_budgets(std::span<const SequencePart> parts, int32_t num_layers, ForwardBatch* batch) {
  size_t num_kv_heads = 1;
  for (const SequencePart& part : parts) num_kv_heads = std::max(num_kv_heads, heads_of(part, num_layers));
  if (num_kv_heads == 1) return;
  batch->head_budgets.assign(static_cast<size_t>(num_layers) * num_kv_heads * parts.size(),
                             kernels::kDenseBudget);
  for (size_t b = 0; b < parts.size(); ++b) {
    const size_t heads = heads_of(parts[b], num_layers);
    if (heads == 0) continue;
    for (size_t entry = 0; entry < static_cast<size_t>(num_layers) * num_kv_heads; ++entry) {
      const size_t layer = entry / num_kv_heads, head = entry % num_kv_heads;
      const int32_t samples = parts[b].samples[layer * heads + (heads == 1 ? 0 : head)];
      if (samples != kExactLayer) batch->head_budgets[entry * parts.size() + b] = samples;
    }
  }
}

}  // namespace

void place_tokens(ForwardBatch& batch, int32_t page_size) {
  batch.positions.clear();
  batch.slots.clear();
  for (int64_t sequence = 0; sequence < batch.batch(); ++sequence) {
    const int64_t new_tokens = batch.query_start[sequence + 1] - batch.query_start[sequence];
    const int32_t* pages = batch.page_table.data() + sequence * batch.max_pages;
    for (int64_t position = batch.lengths[sequence] - new_tokens; position < batch.lengths[sequence];
         ++position) {
      batch.positions.push_back(static_cast<int32_t>(position));
      batch.slots.push_back(int64_t{pages[position / page_size]} * page_size + position % page_size);
    }
  }
}

ForwardBatch make_batch(std::span<const SequencePart> parts, int32_t num_layers, int32_t page_size) {
  ForwardBatch batch;
  batch.query_start.push_back(0);
  for (const SequencePart& part : parts) {
    const int64_t row = batch.num_tokens();
    batch.tokens.insert(batch.tokens.end(), part.tokens.begin() + part.begin, part.tokens.begin() + part.end);
    if (part.chosen_before >= 0) {
      batch.chosen_before.resize(batch.tokens.size(), -1);
      batch.chosen_before.back() = part.chosen_before;
    }
    batch.query_start.push_back(batch.num_tokens());
    batch.lengths.push_back(static_cast<int32_t>(part.end));
    batch.draws.push_back(part.draws);
    batch.max_pages = std::max(batch.max_pages, static_cast<int32_t>((part.end + page_size - 1) / page_size));
    for (int64_t position = std::max(part.begin, part.first_output); position < part.end; ++position)
      batch.output_rows.push_back(row + position - part.begin);
  }
  if (!batch.chosen_before.empty()) batch.chosen_before.resize(batch.tokens.size(), -1);
  const size_t sequences = parts.size(), max_pages = static_cast<size_t>(batch.max_pages);
  batch.page_table.resize(sequences * max_pages, 0);
  batch.budgets.resize(num_layers * sequences, kernels::kDenseBudget);
  for (size_t b = 0; b < sequences; ++b) {
    const std::span<const int32_t> pages = parts[b].pages;
    std::copy_n(pages.begin(), std::min(pages.size(), max_pages), batch.page_table.begin() + b * max_pages);
    const size_t heads = heads_of(parts[b], num_layers);
    for (size_t layer = 0; heads > 0 && layer < static_cast<size_t>(num_layers); ++layer) {
      const int32_t samples = parts[b].samples[layer * heads];
      if (samples != kExactLayer) batch.budgets[layer * sequences + b] = samples;
    }
  }
  set_head_budgets(parts, num_layers, &batch);
  place_tokens(batch, page_size);
  return batch;
}

int64_t prefill_tokens(int64_t size, int64_t remaining, int64_t room) {
  const int64_t tokens = std::min(room, remaining);
  if (remaining - tokens == 1) return remaining;
  return tokens == 1 && size > 1 ? 0 : tokens;
}

AttentionPlan::AttentionPlan(const ForwardBatch& batch, std::span<const int64_t> rows, int threads)
    : max_pages_(batch.max_pages), runs_(cut_into_runs(batch, rows)) {
  int64_t total = 0;
  for (const QueryRun& run : runs_) total += cost(run);
  const int64_t share = threads == 1 ? total : total / (threads * kLaunchesPerThread);

  int64_t row = 0, filled = 0;
  for (size_t i = 0; i < runs_.size(); ++i) {
    const QueryRun& run = runs_[i];
    if (i == 0 || filled >= share) {
      launches_.push_back({.first_run = static_cast<int64_t>(i), .runs = 0, .first_row = row});
      query_start_.push_back(0);
      filled = 0;
    }
    ++launches_.back().runs;
    query_start_.push_back(query_start_.back() + run.queries);
    lengths_.push_back(run.length);
    draws_.push_back(batch.draws[run.sequence]);
    const auto pages = batch.page_table.begin() + run.sequence * batch.max_pages;
    page_table_.insert(page_table_.end(), pages, pages + batch.max_pages);
    row += run.queries;
    filled += cost(run);
  }
  const int64_t layers = static_cast<int64_t>(batch.budgets.size()) / std::max<int64_t>(1, batch.batch());
  budgets_.reserve(layers * runs_.size());
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (const QueryRun& run : runs_) budgets_.push_back(batch.budgets[layer * batch.batch() + run.sequence]);
  }
  if (batch.head_budgets.empty()) return;
  const int64_t entries = static_cast<int64_t>(batch.head_budgets.size()) / batch.batch();
  num_kv_heads_ = entries / layers;
  head_budgets_.reserve(static_cast<size_t>(entries) * runs_.size());
  for (int64_t entry = 0; entry < entries; ++entry)
    for (const QueryRun& run : runs_)
      head_budgets_.push_back(batch.head_budgets[entry * batch.batch() + run.sequence]);
}

std::vector<AttentionPlan::HeadBudgets> AttentionPlan::head_budgets(const Launch& launch,
                                                                    int32_t layer) const {
  const auto runs = static_cast<int64_t>(runs_.size());
  std::vector<HeadBudgets> all;
  for (int32_t head = 0; head < num_kv_heads_; ++head) {
    const std::span<const int32_t> budgets(
        head_budgets_.data() + (layer * num_kv_heads_ + head) * runs + launch.first_run,
        static_cast<size_t>(launch.runs));
    const auto same = std::ranges::find_if(
        all, [&](const HeadBudgets& one) { return std::ranges::equal(one.budgets, budgets); });
    if (same == all.end())
      all.push_back({.budgets = budgets, .kv_heads = {head}});
    else
      same->kv_heads.push_back(head);
  }
  if (all.size() < 2) all.clear();
  return all;
}

void AttentionPlan::describe(const Launch& launch, int32_t layer, kernels::AttentionParams& params) const {
  const int64_t number = &launch - launches_.data();
  params.batch = launch.runs;
  params.max_pages = max_pages_;
  params.page_table = page_table_.data() + launch.first_run * max_pages_;
  params.query_start = query_start_.data() + launch.first_run + number;
  params.lengths = lengths_.data() + launch.first_run;
  params.draws = draws_.data() + launch.first_run;
  params.budgets = budgets_.data() + layer * static_cast<int64_t>(runs_.size()) + launch.first_run;
}

bool AttentionPlan::all_dense(int32_t layer) const {
  const auto runs = static_cast<int64_t>(runs_.size());
  const auto is_dense = [](int32_t budget) { return budget == kernels::kDenseBudget; };
  const auto heads = head_budgets_.begin() + layer * num_kv_heads_ * runs;
  return std::all_of(budgets_.begin() + layer * runs, budgets_.begin() + (layer + 1) * runs, is_dense) &&
         std::all_of(heads, heads + num_kv_heads_ * runs, is_dense);
}

}  // namespace allot::model
