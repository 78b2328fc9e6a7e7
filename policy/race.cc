#include "policy/race.h"

#include <algorithm>
#include <cmath>

#include "base/json.h"

namespace allot::policy {
namespace {

using nlohmann::json;

constexpr double kFade = 0.97;
constexpr double kLeastPairs = 3.5;  // four, a little faded
// A few pairs may agree by chance; the least standard deviation keeps them from deciding by that.
constexpr double kLeastDeviation = 0.05;
constexpr double kUnknown = -100;

}  // namespace

void Race::tell(int64_t group, int candidate, std::optional<double> reward) {
  const auto found = halves_.find(group);
  if (found == halves_.end()) {
    halves_.emplace(group, Half{candidate, reward});
    return;
  }
  const Half other = found->second;
  halves_.erase(found);
  if (!reward || !other.reward) return;
  const double difference = candidate == 1 ? *reward - *other.reward : *other.reward - *reward;
  pairs_ = kFade * pairs_ + 1;
  sum_ = kFade * sum_ + difference;
  squares_ = kFade * squares_ + difference * difference;
}

double Race::second_lead() const {
  if (pairs_ < kLeastPairs) return kUnknown;
  const double mean = sum_ / pairs_;
  const double deviation = std::sqrt(std::max(squares_ / pairs_ - mean * mean, 0.0));
  return mean / std::max(deviation, kLeastDeviation) * std::sqrt(pairs_);
}

json Race::save() const {
  json halves = json::array();
  for (const auto& [group, half] : halves_) {
    halves.push_back({group, half.candidate, half.reward ? json(*half.reward) : json(nullptr)});
  }
  return {{"halves", std::move(halves)}, {"pairs", pairs_}, {"sum", sum_}, {"squares", squares_}};
}

void Race::restore(const json& saved) {
  halves_.clear();
  for (const json& entry : saved.at("halves")) {
    Half half{.candidate = entry.at(1)};
    if (!entry.at(2).is_null()) half.reward = entry.at(2).get<double>();
    halves_.emplace(entry.at(0).get<int64_t>(), half);
  }
  pairs_ = saved.at("pairs");
  sum_ = saved.at("sum");
  squares_ = saved.at("squares");
}

}  // namespace allot::policy
