#include "oracle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <numeric>
#include <thread>
#include <utility>

#include "kernels/sampling.h"
#include "tests/kernels/launch.h"

namespace allot::kernels::testing {
namespace {

using reference::Row;
using reference::Selected;

// Relative rounding error of a dtype: half a unit in the last place.
double roundoff(DType dtype) {
  return dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-11;
}

float stored(float x, DType dtype) {
  return Elements(dtype, 1, x).get(0);
}

bool samples(const AttentionParams& p, int64_t sequence) {
  return p.method.estimator != Estimator::kExact && p.budgets[sequence] > 0;
}

// Every sample of a row weighs the same and no probability enters.
bool counts_samples(Estimator estimator) {
  return estimator == Estimator::kIid || estimator == Estimator::kStrat || estimator == Estimator::kSys ||
         estimator == Estimator::kProp;
}

std::vector<double> plain_row(const AttentionParams& p, const Row& row, const std::vector<Selected>& selected,
                              std::span<const double> probabilities, std::span<const double> values) {
  const std::vector<double> keys = reference::keys(p, row);
  std::vector<float> query;
  for (const double x : reference::score_query(p, row))
    query.push_back(stored(static_cast<float>(x), p.dtype));
  std::vector<float> weights(probabilities.size());
  for (size_t key = 0; key < weights.size(); ++key) {
    float dot = 0;
    for (int32_t i = 0; i < p.head_dim; ++i) dot += query[i] * static_cast<float>(keys[key * p.head_dim + i]);
    weights[key] = dot * p.scale;
  }
  const float largest = *std::max_element(weights.begin(), weights.end());
  float total = 0;
  for (float& weight : weights) total += weight = std::exp(weight - largest);
  const bool counted = samples(p, row.sequence) && counts_samples(p.method.estimator);
  std::vector<double> result;
  for (int32_t i = 0; i < p.head_dim; ++i) {
    float sum = 0;
    for (const Selected& pick : selected) {
      const float weight = counted ? static_cast<float>(pick.weight)
                                   : static_cast<float>(pick.weight / probabilities[pick.key]) *
                                         stored(weights[pick.key], p.dtype) / total;
      sum += weight * static_cast<float>(values[static_cast<size_t>(pick.key) * p.head_dim + i]);
    }
    result.push_back(stored(sum, p.dtype));
  }
  return result;
}

Comparison compare_row(const AttentionParams& p, const std::vector<double>& out, const Row& row) {
  const Scope scope = row_of(p.method.estimator).scope;
  Comparison result{.rows = 1,
                    .heads_together = scope == Scope::kHead    ? 1
                                      : scope == Scope::kGroup ? p.num_q_heads / p.num_kv_heads
                                                               : p.num_q_heads};
  // What `plain_row` divides by: of whole keys where weights are corrected.
  AttentionParams scored = p;
  if (p.split.low != nullptr && p.key_pages != nullptr) scored.split = {};
  const std::vector<double> probabilities = reference::softmax(reference::scores(scored, row));
  const std::vector<Selected> selected = reference::select(p, row);
  const std::vector<double> values = reference::values(p, row);
  const std::vector<double> plain = plain_row(p, row, selected, probabilities, values);
  const int64_t first = row_number(p, row) * p.head_dim;
  double magnitude = 0;  // squared norm of the sums of |weight * value|, which bound rounding errors
  for (int32_t i = 0; i < p.head_dim; ++i) {
    double exact = 0, absolute = 0;
    for (const auto& [key, weight] : selected) {
      const double term = weight * values[static_cast<size_t>(key) * p.head_dim + i];
      exact += term;
      absolute += std::abs(term);
    }
    const double error = std::abs(out[first + i] - exact);
    const double plain_error = std::abs(plain[i] - exact);
    result.squared_error += error * error;
    result.largest_error = std::isnan(error) ? error : std::max(result.largest_error, error);
    result.plain_squared_error += plain_error * plain_error;
    result.plain_largest_error = std::max(result.plain_largest_error, plain_error);
    magnitude += absolute * absolute;
  }
  const bool sampled = samples(p, row.sequence) || !has_exact_scores(p, row.sequence);
  result.sampled_rows = sampled ? 1 : 0;
  // A sample on another key moves the output by about sqrt(2 head_dim) / S, rounding by 1/100 of a value's
  // norm.
  const double rounding = 3 * roundoff(p.dtype) * std::sqrt(magnitude);
  if (sampled && !(std::sqrt(result.squared_error) <= rounding)) {
    return {.rows = 1, .sampled_rows = 1, .other_keys = 1, .heads_together = result.heads_together};
  }
  return result;
}

// Samples in units of which each key's weight is a count, but for the keys that `threshold` keeps.
std::vector<double> sample_weights(const reference::Selection& selection, std::span<const double> p,
                                   const std::vector<Selected>& selected) {
  const auto keys = static_cast<int32_t>(p.size());
  std::vector<double> result(p.size(), 1.0 / selection.budget);
  if (selection.estimator == Estimator::kThreshold) {
    double tau = 1;
    for (const Selected& pick : selected) tau = std::min(tau, pick.weight);
    std::fill(result.begin(), result.end(), tau);
  }
  if (selection.estimator == Estimator::kFlash) {
    const int32_t tiles = tile_count(keys, selection.tile);
    for (int32_t t = 0; t < tiles; ++t) {
      const auto begin = p.begin() + t * selection.tile;
      const auto end = p.begin() + std::min(keys, (t + 1) * selection.tile);
      const double mass = std::accumulate(begin, end, 0.0);
      std::fill(result.begin() + (begin - p.begin()), result.begin() + (end - p.begin()),
                mass / flash_tile_budget(selection.budget, tiles, t));
    }
  }
  return result;
}

}  // namespace

void parallel_for(int64_t count, const std::function<void(int64_t)>& body) {
  std::atomic<int64_t> next = 0;
  std::vector<std::jthread> threads;
  const int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  for (int64_t i = 0; i < std::min(cores, count); ++i) {
    threads.emplace_back([&] {
      try {
        for (int64_t item = next++; item < count; item = next++) body(item);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    });
  }
}

std::vector<Row> rows_of(const AttentionParams& p) {
  std::vector<Row> rows;
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t query = 0; query < p.query_start[b + 1] - p.query_start[b]; ++query) {
      for (int32_t head = 0; head < p.num_q_heads; ++head) rows.push_back({b, query, head});
    }
  }
  return rows;
}

int64_t row_number(const AttentionParams& p, const Row& row) {
  return (p.query_start[row.sequence] + row.query) * p.num_q_heads + row.head;
}

void Comparison::add(const Comparison& other) {
  squared_error += other.squared_error;
  plain_squared_error += other.plain_squared_error;
  // A NaN must stay: std::max would drop it.
  largest_error =
      std::isnan(other.largest_error) ? other.largest_error : std::max(largest_error, other.largest_error);
  plain_largest_error = std::max(plain_largest_error, other.plain_largest_error);
  rows += other.rows;
  sampled_rows += other.sampled_rows;
  other_keys += other.other_keys;
  heads_together = std::max(heads_together, other.heads_together);
}

Comparison compare(const AttentionParams& p, const std::vector<double>& out, std::span<const Row> rows) {
  std::vector<Comparison> parts(rows.size());
  parallel_for(static_cast<int64_t>(rows.size()),
               [&](int64_t i) { parts[i] = compare_row(p, out, rows[i]); });
  Comparison total;
  for (const Comparison& part : parts) total.add(part);
  return total;
}

Comparison compare(const AttentionParams& p, const std::vector<double>& out) {
  return compare(p, out, rows_of(p));
}

void expect_near_plain(const Comparison& total, double other_keys, const std::string& where) {
  EXPECT_GT(total.rows, 0) << where;
  const bool together = total.heads_together > 1;
  EXPECT_LE(std::sqrt(total.squared_error), (together ? 3 : 2) * std::sqrt(total.plain_squared_error))
      << where;
  EXPECT_LE(total.largest_error, (together ? 5 : 3) * total.plain_largest_error) << where;
  // Rows of a group choose together, so what a share gives by chance varies with the square of their number.
  const double expected = other_keys * total.heads_together * static_cast<double>(total.sampled_rows);
  const double deviation = std::sqrt(expected * total.heads_together);
  EXPECT_LE(static_cast<double>(total.other_keys), expected + 2 * deviation)
      << where << ": " << total.other_keys << " of " << total.sampled_rows << " rows took other keys";
}

void Movement::add(const Movement& other) {
  moved += other.moved;
  samples += other.samples;
  mass = std::max(mass, other.mass);
}

Movement movement(const reference::Selection& selection, std::span<const double> p,
                  const std::vector<Selected>& selected, std::span<const double> weights) {
  const std::vector<double> unit = sample_weights(selection, p, selected);
  std::vector<double> expected(p.size(), 0.0), actual(p.size(), 0.0);
  for (const auto& [key, weight] : selected) expected[key] = weight / unit[key];
  for (size_t n = 0; n < p.size(); ++n) {
    actual[n] = unit[n] > 0 ? weights[n] / unit[n] : 0;
    // The output's dtype blurs a count by less than half of one, and the weight of a key that is kept by
    // 1/256.
    if (selection.estimator != Estimator::kThreshold) actual[n] = std::round(actual[n]);
    // Below 2^-14 of its tile's maximum a weight in float16 is a multiple of 2^-24.
    const double blur =
        std::max(0.015 * std::max(actual[n], expected[n]), unit[n] > 0 ? 0x1p-24 / unit[n] : 0);
    if (std::abs(actual[n] - expected[n]) <= blur) actual[n] = expected[n];
  }
  Movement result{.samples = static_cast<double>(selection.budget)};
  // `threshold` may be left with keys to draw that together are lighter than the rounding of the keys kept;
  // samples lighter than 2^-16 of the row count by their weight.
  const auto importance = [&](size_t key) { return std::min(1.0, 0x1p16 * unit[key]); };
  // Samples in order of their keys belong together: the cheapest way to turn one selection into the other.
  // Pieces below 1/20 sample are blur of kept weights.
  constexpr double kPiece = 0.05;
  size_t e = 0, a = 0;
  double e_left = expected[0], a_left = actual[0];
  while (true) {
    while (e < p.size() && e_left < kPiece) {
      if (++e < p.size()) e_left = expected[e];
    }
    while (a < p.size() && a_left < kPiece) {
      if (++a < p.size()) a_left = actual[a];
    }
    if (e == p.size() && a == p.size()) break;
    if (e == p.size() || a == p.size()) {  // a sample too few or too many
      result.moved +=
          e < p.size() ? std::exchange(e_left, 0) * importance(e) : std::exchange(a_left, 0) * importance(a);
      continue;
    }
    const double piece = std::min(e_left, a_left);
    if (e != a) {
      result.moved += piece * importance(e);
      const auto between = std::minmax(e, a);
      result.mass = std::max(result.mass,
                             std::accumulate(p.begin() + between.first + 1, p.begin() + between.second, 0.0));
    }
    e_left -= piece;
    a_left -= piece;
  }
  return result;
}

double remainder_gap(const reference::Selection& selection, std::span<const double> p) {
  const auto keys = static_cast<int32_t>(p.size());
  const int32_t tiles = tile_count(keys, selection.tile);
  std::vector<double> fractions;
  double left = selection.budget;
  for (int32_t t = 0; t < tiles; ++t) {
    const double share =
        selection.budget * std::accumulate(p.begin() + t * selection.tile,
                                           p.begin() + std::min(keys, (t + 1) * selection.tile), 0.0);
    fractions.push_back(share - std::floor(share));
    left -= std::floor(share);
  }
  std::sort(fractions.begin(), fractions.end(), std::greater<>());
  const auto given = static_cast<size_t>(left + 0.5);
  return given == 0 || given >= fractions.size() ? 1 : fractions[given - 1] - fractions[given];
}

}  // namespace allot::kernels::testing
