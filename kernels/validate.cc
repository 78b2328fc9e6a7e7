// Host checks of a launch: everything the kernels index with is proven in range here, so they need
// no checks themselves.
#include <spdlog/fmt/fmt.h>

#include <cmath>

#include "base/error.h"
#include "kernels/attention.h"
#include "kernels/sampling.h"

namespace allot::kernels {
namespace {

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) {
  throw InvalidArgument("attention: " + fmt::format(text, std::forward<Args>(args)...));
}

void check_pointer(const void* pointer, const char* field) {
  if (pointer == nullptr) refuse("{} is null; it must point to the launch's data", field);
}

bool samples_values(const AttentionParams& p) {
  return row_of(p.method.estimator).samples;
}
bool samples_scores(const AttentionParams& p) {
  return p.method.score_stage != ScoreStage::kExact;
}

void check_shapes(const AttentionParams& p) {
  if (p.batch < 0) refuse("batch is {}; expected 0 or more", p.batch);
  if (p.num_kv_heads < 1 || p.num_q_heads < p.num_kv_heads || p.num_q_heads % p.num_kv_heads != 0 ||
      p.num_q_heads > 65536) {
    refuse("{} query heads over {} KV heads; expected a positive multiple, at most 65536 query heads",
           p.num_q_heads, p.num_kv_heads);
  }
  const int32_t group = p.num_q_heads / p.num_kv_heads;
  if (p.first_head < 0 || p.first_head % group != 0 || p.first_head > 65536 - p.num_q_heads) {
    refuse(
        "first_head is {} for {} query heads; expected a multiple of {}, the query heads of a KV head, and "
        "at most {}",
        p.first_head, p.num_q_heads, group, 65536 - p.num_q_heads);
  }
  if (p.head_dim < 8 || p.head_dim > 256 || p.head_dim % 8 != 0) {
    refuse("head_dim is {}; expected a multiple of 8 from 8 to 256", p.head_dim);
  }
  if (p.page_size < 1) refuse("page_size is {}; expected at least 1 token a page", p.page_size);
  if (p.max_pages < 0 || p.num_pages < 0) {
    refuse("max_pages is {} and num_pages is {}; expected 0 or more", p.max_pages, p.num_pages);
  }
  const int64_t row = int64_t{p.num_q_heads} * p.head_dim;
  if (p.query_stride < row) {
    refuse("query_stride is {} elements; expected at least num_q_heads * head_dim = {}", p.query_stride, row);
  }
  if (!std::isfinite(p.scale) || p.scale <= 0) {
    refuse("scale is {}; expected a positive finite number, usually 1 / sqrt(head_dim) = {}", p.scale,
           1 / std::sqrt(static_cast<double>(p.head_dim)));
  }
}

void check_estimation(const AttentionParams& p) {
  for (const std::string& fault : estimator_faults(p.method))
    refuse("estimator {}: {}", name(p.method.estimator), fault);
  if (row_of(p.method.estimator).tiled && p.method.tile < 1) {
    refuse("estimator {} has tiles of {} keys; expected at least 1", name(p.method.estimator), p.method.tile);
  }
  if (samples_scores(p) && (p.method.score_budget < 1 || p.method.score_budget > kMaxBudget)) {
    refuse("score stage {} has budget {}; expected 1 to {}", name(p.method.score_stage),
           p.method.score_budget, kMaxBudget);
  }
  if (p.method.mean_group_query && !samples_scores(p)) {
    refuse("mean_group_query is set with the exact score stage; it needs bernoulli or bernoulli-strat");
  }
  if (p.layer >= kTokenLayer) refuse("layer is {}; expected less than {}", p.layer, kTokenLayer);
}

void check_pages(const AttentionParams& p, int64_t sequence, int32_t length) {
  const int64_t needed = (int64_t{length} + p.page_size - 1) / p.page_size;
  if (needed > p.max_pages) {
    refuse("sequence {} has length {}, which needs {} pages of {} tokens, but its page table has room for {}",
           sequence, length, needed, p.page_size, p.max_pages);
  }
  const int32_t* pages = p.page_table + sequence * p.max_pages;
  for (int64_t i = 0; i < needed; ++i) {
    if (pages[i] < 0 || pages[i] >= p.num_pages) {
      refuse("sequence {} names page {} for its tokens from {} on; expected 0 to {}", sequence, pages[i],
             i * p.page_size, p.num_pages - 1);
    }
  }
}

void check_budget(const AttentionParams& p, int64_t sequence, int32_t length) {
  const int32_t budget = p.budgets[sequence];
  if (budget < kDenseBudget || budget > kMaxBudget) {
    refuse("sequence {} has sample budget {}; expected 0 to {}, or {} for exact attention", sequence, budget,
           kMaxBudget, kDenseBudget);
  }
  const int32_t least = least_samples(p.method, length);
  if (budget > 0 && budget < least) {
    refuse(
        "estimator {} needs a sample in every tile: sequence {} has length {}, {} tiles of {} keys, but a "
        "budget of {}; raise the budget, enlarge the tile or use sys",
        name(p.method.estimator), sequence, length, least, p.method.tile, budget);
  }
}

}  // namespace

void validate(const AttentionParams& p) {
  check_shapes(p);
  check_estimation(p);
  if (p.batch == 0) return;
  check_pointer(p.query_start, "query_start");
  check_pointer(p.lengths, "lengths");
  if (p.query_start[0] != 0) refuse("query_start[0] is {}; expected 0", p.query_start[0]);
  for (int64_t b = 0; b < p.batch; ++b) {
    if (p.query_start[b + 1] < p.query_start[b]) {
      refuse("query_start[{}] is {}, below query_start[{}] = {}; expected a rising list", b + 1,
             p.query_start[b + 1], b, p.query_start[b]);
    }
  }
  if (p.query_start[p.batch] == 0) return;
  if (p.split.high == nullptr) check_pointer(p.query, "query");
  if (p.split.high == nullptr) {
    check_pointer(p.key_pages, "key_pages");
  } else {
    check_pointer(p.split.query, "split.query");
    check_pointer(p.split.query_units, "split.query_units");
  }
  check_pointer(p.value_pages, "value_pages");
  check_pointer(p.page_table, "page_table");
  check_pointer(p.out, "out");
  if (uses_value_norms(p.method)) check_pointer(p.value_norms, "value_norms");
  if (samples_values(p)) check_pointer(p.budgets, "budgets");
  const bool needs_draws = samples_scores(p) || row_of(p.method.estimator).draws;
  if (needs_draws) check_pointer(p.draws, "draws");
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t queries = p.query_start[b + 1] - p.query_start[b];
    if (p.lengths[b] < queries) {
      refuse(
          "sequence {} has {} queries but length {}; the last query sees every key, so length is at least "
          "the number of queries",
          b, queries, p.lengths[b]);
    }
    if (queries == 0) continue;
    check_pages(p, b, p.lengths[b]);
    if (samples_values(p)) check_budget(p, b, p.lengths[b]);
  }
}

}  // namespace allot::kernels
