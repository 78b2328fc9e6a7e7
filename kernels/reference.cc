#include "kernels/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/element.h"
#include "kernels/sampling.h"

namespace allot::kernels::reference {
namespace {

int32_t group_size(const AttentionParams& p) {
  return p.num_q_heads / p.num_kv_heads;
}

double query_element(const AttentionParams& p, const Row& row, int32_t head, int32_t i) {
  const int64_t token = p.query_start[row.sequence] + row.query;
  return element(p.query, p.dtype, token * p.query_stride + int64_t{head} * p.head_dim + i);
}

// Row of token `key` among the cached vectors of all pages, for the row's KV head.
int64_t cached_row(const AttentionParams& p, const Row& row, int32_t key) {
  const int64_t page = p.page_table[row.sequence * p.max_pages + key / p.page_size];
  return (page * p.num_kv_heads + row.head / group_size(p)) * p.page_size + key % p.page_size;
}

// Element i of the cached vector of token `key` in `pages` for the row's KV head.
double cached_element(const AttentionParams& p, const void* pages, const Row& row, int32_t key, int32_t i) {
  return element(pages, p.dtype, cached_row(p, row, key) * p.head_dim + i);
}

std::vector<double> cached_vectors(const AttentionParams& p, const void* pages, const Row& row) {
  std::vector<double> result;
  for (int32_t key = 0; key < visible_keys(p, row); ++key) {
    for (int32_t i = 0; i < p.head_dim; ++i) result.push_back(cached_element(p, pages, row, key, i));
  }
  return result;
}

// Successes among the B Bernoulli variables of a query element with success probability `probability`.
int32_t bernoulli_successes(const AttentionParams& p, const DrawRow& draws, int32_t i, double probability) {
  int32_t successes = 0;
  for (int32_t b = 0; b < p.method.score_budget; ++b) {
    const double u = draw_uniform(draws, bernoulli_draw(b, i, p.head_dim));
    // Stratified: sample b has its uniform number in [b/B, (b + 1)/B).
    const double point =
        p.method.score_stage == ScoreStage::kBernoulliStrat ? (b + u) / p.method.score_budget : u;
    if (point < probability) ++successes;
  }
  return successes;
}

// Whether the row's scores are those of the planes of split keys.
bool reads_planes(const AttentionParams& p, const Row& row) {
  const bool dense = !row_of(p.method.estimator).samples || p.budgets[row.sequence] == kDenseBudget;
  return p.split.high != nullptr && (!dense || attends_exactly_by_planes(p));
}

// Of split keys: the score of each key by its high plane, and what the low plane adds to it.
struct SplitScores {
  std::vector<double> high, low;
};

SplitScores split_scores(const AttentionParams& p, const Row& row) {
  const int64_t query_row = (p.query_start[row.sequence] + row.query) * p.num_q_heads + row.head;
  const int8_t* const query = p.split.query + 2 * query_row * p.head_dim;
  const double query_unit = p.split.query_units[query_row] * static_cast<double>(p.scale);
  SplitScores result;
  for (int32_t key = 0; key < visible_keys(p, row); ++key) {
    const int64_t at = cached_row(p, row, key);
    const auto of_block = static_cast<int32_t>(at % kSplitBlockKeys);
    const char* const block =
        static_cast<const char*>(p.split.high) + at / kSplitBlockKeys * split_block_bytes(p.head_dim);
    float unit = 0;
    std::memcpy(&unit, block + split_unit_offset(p.head_dim, of_block), sizeof(unit));
    int64_t by_high = 0, by_low = 0;
    for (int32_t i = 0; i < p.head_dim; ++i) {
      const int32_t element = 256 * query[i] + query[p.head_dim + i];
      by_high += element * static_cast<int8_t>(block[split_high_offset(p.head_dim, of_block, i)]);
      if (p.split.low != nullptr) by_low += element * p.split.low[at * p.head_dim + i];
    }
    result.high.push_back(static_cast<double>(by_high) / 256 * query_unit * unit);
    result.low.push_back(static_cast<double>(by_low) / 65536 * query_unit * unit);
  }
  return result;
}

// Corrects the weights of the rows drawn by the high planes of split keys.
void correct(const AttentionParams& p, const Row& row, std::vector<Selected>& selected) {
  const SplitScores by = split_scores(p, row);
  double before = 0, after = 0;
  for (Selected& pick : selected) {
    before += pick.weight;
    after += pick.weight *= std::exp(by.low[pick.key]);
  }
  for (Selected& pick : selected) pick.weight *= before / after;
}

// Norm of the cached value of token `key`, as the launch has it, for the row's KV head.
double value_norm(const AttentionParams& p, const Row& row, int32_t key) {
  return p.value_norms[cached_row(p, row, key)];
}

using Select = void (*)(const SharedRows&, const Choice&, const DrawRow&, std::vector<double>&);
struct SelectOf {
  template <class Method>
  static void of_one_head(const SharedRows& row, const Choice& choice, const DrawRow& draws,
                          std::vector<double>& weights) {
    Method::select(row.p, choice, draws, weights);
  }
  // Null for a method without samples.
  template <class Method>
  static constexpr Select of() {
    if constexpr (!Method::kRow.samples) {
      return nullptr;
    } else if constexpr (Method::kRow.scope == Scope::kHead) {
      return of_one_head<Method>;
    } else {
      return Method::select_shared;
    }
  }
};
constexpr Methods::Table<Select, SelectOf> kSelect;

// Query heads that choose together with the row's, in the order of SharedRows.
struct Heads {
  int32_t first = 0;
  int32_t groups = 1;
  int32_t per_group = 1;
};

Heads heads_of(const AttentionParams& p, const Row& row) {
  const int32_t group = group_size(p);
  switch (row_of(p.method.estimator).scope) {
    case Scope::kHead:
      return {.first = row.head};
    case Scope::kGroup:
      return {.first = row.head / group * group, .per_group = group};
    case Scope::kLayer:
      return {.groups = p.num_kv_heads, .per_group = group};
  }
  return {};
}

// The weights of all rows of a scope, [groups, heads, keys].
std::vector<double> weights_of(const SharedRows& rows, const Selection& selection, const DrawRow& draws) {
  const Select select_keys = kSelect[selection.estimator];
  if (select_keys == nullptr || selection.budget == kDenseBudget) return {rows.p.begin(), rows.p.end()};
  std::vector<double> weights(rows.p.size(), 0.0);
  if (selection.budget > 0) {
    select_keys(rows,
                {selection.budget, selection.tile, own_parameters(selection.estimator, selection.parameters),
                 selection.unit},
                draws, weights);
  }
  return weights;
}

std::vector<Selected> selected_of(std::span<const double> weights) {
  std::vector<Selected> selected;
  for (size_t key = 0; key < weights.size(); ++key) {
    if (weights[key] > 0) selected.push_back({static_cast<int32_t>(key), weights[key]});
  }
  return selected;
}

}  // namespace

int32_t visible_keys(const AttentionParams& p, const Row& row) {
  const int64_t queries = p.query_start[row.sequence + 1] - p.query_start[row.sequence];
  return static_cast<int32_t>(p.lengths[row.sequence] - (queries - 1 - row.query));
}

DrawRow draw_row(const AttentionParams& p, const Row& row) {
  const SequenceDraws& draws = p.draws[row.sequence];
  return {.key = draws.key,
          .question = draws.question,
          .layer = p.layer,
          .head = static_cast<uint32_t>(p.first_head + row.head),
          .position = static_cast<uint32_t>(visible_keys(p, row) - 1)};
}

std::vector<double> score_query(const AttentionParams& p, const Row& row) {
  std::vector<double> query(p.head_dim);
  for (int32_t i = 0; i < p.head_dim; ++i) query[i] = query_element(p, row, row.head, i);
  if (has_exact_scores(p, row.sequence)) return query;

  // Equation 8 draws from |q|; equation 10 from the group's mean of |q|, under the group's first query head.
  const int32_t group = group_size(p);
  const int32_t first_head = p.method.mean_group_query ? row.head / group * group : row.head;
  const int32_t heads = p.method.mean_group_query ? group : 1;
  std::vector<double> magnitude(p.head_dim, 0.0);
  for (int32_t head = first_head; head < first_head + heads; ++head) {
    for (int32_t i = 0; i < p.head_dim; ++i) magnitude[i] += std::abs(query_element(p, row, head, i)) / heads;
  }
  const double norm = *std::max_element(magnitude.begin(), magnitude.end());
  DrawRow draws = draw_row(p, row);
  draws.head = static_cast<uint32_t>(p.first_head + first_head);
  for (int32_t i = 0; i < p.head_dim; ++i) {
    if (magnitude[i] == 0) continue;  // the query is zero here too
    const double estimate =
        norm * bernoulli_successes(p, draws, i, magnitude[i] / norm) / p.method.score_budget;
    query[i] *= estimate / magnitude[i];  // one head: norm * sign(q) * successes / B; a group: equation 13
  }
  return query;
}

std::vector<double> scores(const AttentionParams& p, const Row& row) {
  if (reads_planes(p, row)) return split_scores(p, row).high;
  const std::vector<double> query = score_query(p, row);
  std::vector<double> result(visible_keys(p, row));
  for (int32_t key = 0; key < static_cast<int32_t>(result.size()); ++key) {
    double dot = 0;
    for (int32_t i = 0; i < p.head_dim; ++i) dot += query[i] * cached_element(p, p.key_pages, row, key, i);
    result[key] = dot * static_cast<double>(p.scale);
  }
  return result;
}

std::vector<double> softmax(std::span<const double> row_scores) {
  const double largest = *std::max_element(row_scores.begin(), row_scores.end());
  std::vector<double> result;
  for (const double score : row_scores) result.push_back(std::exp(score - largest));
  const double total = std::accumulate(result.begin(), result.end(), 0.0);
  for (double& probability : result) probability /= total;
  return result;
}

std::vector<double> keys(const AttentionParams& p, const Row& row) {
  return cached_vectors(p, p.key_pages, row);
}

std::vector<double> values(const AttentionParams& p, const Row& row) {
  return cached_vectors(p, p.value_pages, row);
}

std::vector<Selected> select(std::span<const double> p, const Selection& selection, const DrawRow& draws) {
  return selected_of(weights_of({.p = p, .keys = static_cast<int32_t>(p.size())}, selection, draws));
}

std::vector<Selected> select(const AttentionParams& p, const Row& row) {
  const Selection selection{.estimator = p.method.estimator,
                            .budget = p.budgets == nullptr ? kDenseBudget : p.budgets[row.sequence],
                            .tile = p.method.tile,
                            .parameters = p.method.parameters,
                            .unit = p.method.unit};
  const Heads heads = heads_of(p, row);
  Row other = row;
  const int32_t keys = visible_keys(p, row);
  std::vector<double> probabilities, norms;
  for (other.head = heads.first; other.head < heads.first + heads.groups * heads.per_group; ++other.head) {
    const std::vector<double> of_head = softmax(scores(p, other));
    probabilities.insert(probabilities.end(), of_head.begin(), of_head.end());
    const bool first_of_group = (other.head - heads.first) % heads.per_group == 0;
    for (int32_t key = 0; first_of_group && uses_value_norms(p.method) && key < keys; ++key)
      norms.push_back(value_norm(p, other, key));
  }
  other.head = heads.first;
  const DrawRow draws = p.draws == nullptr ? DrawRow{} : draw_row(p, other);
  const SharedRows rows{
      .p = probabilities, .groups = heads.groups, .heads = heads.per_group, .keys = keys, .norms = norms};
  const std::vector<double> weights = weights_of(rows, selection, draws);
  std::vector<Selected> selected =
      selected_of(std::span(weights).subspan(size_t(row.head - heads.first) * size_t(keys), size_t(keys)));
  if (p.split.low != nullptr && reads_planes(p, row)) correct(p, row, selected);
  return selected;
}

std::vector<double> attend(const AttentionParams& p) {
  validate(p);
  std::vector<double> out(p.batch == 0 ? 0 : p.query_start[p.batch] * p.num_q_heads * p.head_dim, 0.0);
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t query = 0; query < p.query_start[b + 1] - p.query_start[b]; ++query) {
      for (int32_t head = 0; head < p.num_q_heads; ++head) {
        const Row row{b, query, head};
        double* out_row = out.data() + ((p.query_start[b] + query) * p.num_q_heads + head) * p.head_dim;
        for (const auto& [key, weight] : select(p, row)) {
          for (int32_t i = 0; i < p.head_dim; ++i) {
            out_row[i] += weight * cached_element(p, p.value_pages, row, key, i);
          }
        }
      }
    }
  }
  return out;
}

}  // namespace allot::kernels::reference
