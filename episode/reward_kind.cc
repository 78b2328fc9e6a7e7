#include "episode/reward_kind.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace allot {
namespace {

constexpr std::array<RewardKindRow, 2> kRows{{
    {.kind = RewardKind::kAnswers,
     .name = "answers",
     .measure = "accuracy",
     .low = 0,
     .high = 1,
     .higher_is_better = true,
     .unit = "%",
     .per_unit = 100,
     .decimals = 1,
     .difference_unit = "points",
     .generates = true,
     .series = "reward",  // as it was named before there were other kinds
     .axis = "right answers",
     .of_episode = "the share of right answers to its questions",
     .of_run = "right answers"},
    {.kind = RewardKind::kDivergence,
     .name = "divergence",
     .measure = "divergence",
     .low = 0,
     .high = std::numeric_limits<double>::infinity(),
     .higher_is_better = false,
     .unit = "nats",
     .per_unit = 1,
     .decimals = 3,
     .difference_unit = "nats",
     .generates = false,
     .series = "divergence",
     .axis = "divergence, nats",
     .of_episode = "the mean divergence over the solutions of its questions, the lower the better",
     .of_run =
         "divergence of sampled from exact next-token distributions over the solutions, mean nats; nothing "
         "was generated"},
}};

}  // namespace

double RewardKindRow::utility(double reward) const {
  // Below this, rewards differ by rounding alone.
  constexpr double kLeast = 1e-9;
  return higher_is_better ? reward : -std::log(std::max(reward, kLeast));
}

std::string RewardKindRow::format(double score) const {
  return fmt::format("{:.{}f}{}{}", score * per_unit, decimals, unit == "%" ? "" : " ", unit);
}

std::string RewardKindRow::format_amount(double difference) const {
  return fmt::format("{:.{}f} {}", difference * per_unit, decimals, difference_unit);
}

std::string RewardKindRow::format_difference(double difference, double from, double to) const {
  return fmt::format("{:+.{}f} {} ({:+.{}f} to {:+.{}f})", difference * per_unit, decimals, difference_unit,
                     from * per_unit, decimals, to * per_unit, decimals);
}

std::span<const RewardKindRow> reward_kinds() {
  return kRows;
}

const RewardKindRow& row_of(RewardKind kind) {
  return *std::ranges::find(kRows, kind, &RewardKindRow::kind);
}

const RewardKindRow* find_reward_kind(std::string_view name) {
  if (name.empty()) return &row_of(RewardKind::kAnswers);
  const auto* row = std::ranges::find(kRows, name, &RewardKindRow::name);
  return row == kRows.end() ? nullptr : row;
}

RewardKind parse_reward_kind(std::string_view name) {
  if (const RewardKindRow* row = find_reward_kind(name)) return row->kind;
  std::string names;
  for (const RewardKindRow& known : kRows)
    names += fmt::format("{}'{}'", names.empty() ? "" : " or ", known.name);
  throw InvalidArgument(fmt::format("the reward kind is '{}', expected {}", name, names));
}

}  // namespace allot
