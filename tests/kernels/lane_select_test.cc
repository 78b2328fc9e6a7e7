// Sixteen rows at a time take the keys that the rules of kernels/sampling.h say, which are written here once
// more for one row in double precision: for odd numbers of keys and rows, by every instruction set.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/launch.h"
#include "tests/kernels/lane_choices.h"

namespace allot::kernels {
namespace {

using cpu::kLanes;
using testing::ChooseLanes;
using testing::LaneCase;
using testing::LaneLists;
using testing::LaneRule;

struct Choice {
  int32_t key;
  double weight;
};

// What a row takes; `close` where float32 may round another way: a point lies next to a key's boundary, or a
// size next to the limit from which a key is kept.
struct Choices {
  std::vector<Choice> list;
  bool close = false;
};
constexpr double kClose = 3e-5;

std::vector<double> row_of(const std::vector<float>& sizes, int32_t lane) {
  std::vector<double> row;
  for (size_t at = static_cast<size_t>(lane); at < sizes.size(); at += kLanes) row.push_back(sizes[at]);
  return row;
}

double sum(const std::vector<double>& row) {
  double total = 0;
  for (const double size : row) total += size;
  return total;
}

// Every key at one of the points (s + 1 - u) / per_mass of the row's CDF, with how many there are.
Choices at_targets(const std::vector<double>& row, double per_mass, double u) {
  Choices choices;
  double cdf = 0, before = 0;
  for (size_t key = 0; key < row.size(); ++key) {
    if (row[key] == 0) continue;
    cdf += row[key];
    const double point = cdf * per_mass + u, reached = std::floor(point);
    if (std::abs(point - std::round(point)) < kClose + 3e-7 * point) choices.close = true;
    if (reached > before) choices.list.push_back({static_cast<int32_t>(key), reached - before});
    before = reached;
  }
  return choices;
}

Choices expected_systematic(const std::vector<double>& row, int32_t samples, double u) {
  return at_targets(row, samples / sum(row), u);
}

// The largest are kept until all others are below tau = rest / samples left.
Choices expected_threshold(const std::vector<double>& row, int32_t samples, double u) {
  std::vector<double> sorted;
  for (const double size : row)
    if (size > 0) sorted.push_back(size);
  std::sort(sorted.rbegin(), sorted.rend());
  double tau = 0, rest = sum(row);
  if (sorted.size() > static_cast<size_t>(samples)) {
    int32_t kept = 0;
    while (sorted[kept] >= rest / (samples - kept)) rest -= sorted[kept++];
    tau = rest / (samples - kept);
  }
  std::vector<double> others = row;
  Choices choices;
  for (size_t key = 0; key < row.size(); ++key) {
    if (std::abs(row[key] - tau) < kClose * tau) choices.close = true;
    if (row[key] == 0 || row[key] < tau) continue;
    choices.list.push_back({static_cast<int32_t>(key), 1});
    others[key] = 0;
  }
  if (tau == 0) return choices;
  const Choices drawn = at_targets(others, 1 / tau, u);
  choices.close = choices.close || drawn.close;
  for (const Choice& one : drawn.list) choices.list.push_back({one.key, one.weight * tau / row[one.key]});
  std::ranges::sort(choices.list, {}, &Choice::key);
  return choices;
}

Choices expected_level(const std::vector<double>& row, double per_mass, double u) {
  Choices choices = at_targets(row, per_mass, u);
  for (Choice& choice : choices.list) choice.weight = std::max(1.0, 1 / (row[choice.key] * per_mass));
  return choices;
}

Choices expected(const LaneCase& one, const std::vector<double>& row, double u) {
  if (one.rule == LaneRule::kSystematic) return expected_systematic(row, one.samples, u);
  if (one.rule == LaneRule::kThreshold) return expected_threshold(row, one.samples, u);
  return expected_level(row, one.samples, u);
}

// The functions of the instruction sets that may be used here.
std::vector<std::pair<const char*, ChooseLanes>> choosers() {
  std::vector<std::pair<const char*, ChooseLanes>> all{{"portable", testing::choose_lanes_portable}};
  if (cpu::best_isa() >= cpu::Isa::kAvx2) all.emplace_back("avx2", testing::choose_lanes_avx2);
  if (cpu::best_isa() >= cpu::Isa::kAvx512) all.emplace_back("avx512", testing::choose_lanes_avx512);
  return all;
}

// Sizes from next to nothing to 1, some of them 0, some rows seeing fewer keys than others.
std::vector<float> random_sizes(int32_t keys, std::mt19937& random) {
  std::vector<float> sizes(static_cast<size_t>(keys) * kLanes);
  std::normal_distribution<float> normal;
  for (int32_t key = 0; key < keys; ++key) {
    for (int32_t lane = 0; lane < kLanes; ++lane) {
      const bool seen = key == 0 || (key < keys - lane % 5 && random() % 8 != 0);
      const float size = std::min(1.0f, 0.1f * std::exp(1.5f * normal(random)));
      sizes[static_cast<size_t>(key) * kLanes + lane] = seen ? size : 0.0f;
    }
  }
  return sizes;
}

class LaneSelect : public ::testing::TestWithParam<LaneRule> {};
std::string rule_name(const ::testing::TestParamInfo<LaneRule>& rule) {
  if (rule.param == LaneRule::kSystematic) return "systematic";
  return rule.param == LaneRule::kThreshold ? "threshold" : "level";
}
INSTANTIATE_TEST_SUITE_P(Rules, LaneSelect,
                         ::testing::Values(LaneRule::kSystematic, LaneRule::kThreshold, LaneRule::kLevel),
                         rule_name);

TEST_P(LaneSelect, TakesTheKeysOfTheRuleInEveryRow) {
  std::mt19937 random(7);
  int64_t rows = 0, close = 0;
  for (const int32_t keys : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200, 257, 300}) {
    for (const int32_t lanes : {1, 7, 15, 16}) {
      for (const int32_t samples : {1, 3, 8, 24, 70}) {
        const std::vector<float> sizes = random_sizes(keys, random);
        LaneCase one{.rule = GetParam(),
                     .sizes = nullptr,
                     .keys = keys,
                     .lanes = lanes,
                     .samples = samples,
                     .u = {},
                     .cut = static_cast<int32_t>(random() % (static_cast<uint32_t>(keys) + 1))};
        for (float& u : one.u) u = static_cast<float>(random() >> 8) * 0x1p-24f;
        for (const auto& [name, choose] : choosers()) {
          SCOPED_TRACE(std::string(name) + ", keys " + std::to_string(keys) + ", rows " +
                       std::to_string(lanes) + ", samples " + std::to_string(samples) + ", cut at " +
                       std::to_string(one.cut));
          std::vector<float> changed = sizes;
          one.sizes = changed.data();
          std::vector<int32_t> list(sizes.size());
          std::vector<float> weights(sizes.size());
          LaneLists lists{{}, list.data(), weights.data()};
          choose(one, lists);
          for (int32_t lane = 0; lane < kLanes; ++lane) {
            if (lane >= lanes) {
              EXPECT_EQ(lists.counts[lane], 0);
              continue;
            }
            const Choices choices = expected(one, row_of(sizes, lane), one.u[lane]);
            ++rows;
            if (choices.close) {
              ++close;
              continue;
            }
            ASSERT_EQ(lists.counts[lane], static_cast<int32_t>(choices.list.size())) << "row " << lane;
            for (size_t i = 0; i < choices.list.size(); ++i) {
              const size_t at = static_cast<size_t>(lane) * keys + i;
              ASSERT_EQ(list[at], choices.list[i].key) << "row " << lane << ", pick " << i;
              ASSERT_NEAR(weights[at], choices.list[i].weight, 3e-5 * choices.list[i].weight)
                  << "row " << lane << ", pick " << i;
            }
          }
        }
      }
    }
  }
  EXPECT_LT(close, rows / 20);  // the others were compared
}

}  // namespace
}  // namespace allot::kernels
