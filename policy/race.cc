#include "policy/race.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/json.h"
#include "policy/state.h"

namespace allot::policy {

using nlohmann::json;

Race::Race(const json& saved)
    : incumbent_{saved.at("incumbent").get<std::vector<int32_t>>()},
      challenger_{saved.at("challenger").get<std::vector<int32_t>>()},
      pairs_(saved.at("pairs")),
      sum_(saved.at("sum")),
      squares_(saved.at("squares")) {
  require_state(pairs_ >= 0 && std::isfinite(sum_) && std::isfinite(squares_),
                "a race has " + std::to_string(pairs_) + " pairs");
  for (const json& half : read_list(saved, "halves")) {
    const int side = half.at(1);
    require_state(side == 0 || side == 1, "a race has a side " + std::to_string(side));
    halves_.emplace(half.at(0).get<int64_t>(), std::pair(static_cast<Side>(side), half.at(2).get<double>()));
  }
}

void Race::tell(int64_t group, Side side, double value) {
  const auto [half, first] = halves_.try_emplace(group, side, value);
  if (first) return;
  const double other = half->second.second;
  const double difference = side == Side::kChallenger ? value - other : other - value;
  halves_.erase(half);
  ++pairs_;
  sum_ += difference;
  squares_ += difference * difference;
}

double Race::mean() const {
  return pairs_ == 0 ? 0 : sum_ / static_cast<double>(pairs_);
}

double Race::error() const {
  if (pairs_ < 2) return std::numeric_limits<double>::infinity();
  const auto n = static_cast<double>(pairs_);
  const double variance = std::max(squares_ - sum_ * sum_ / n, 0.0) / (n - 1);
  return std::sqrt(variance / n);
}

double Race::evidence(int64_t least) const {
  const double error = this->error();
  return pairs_ < least || error == 0 ? 0 : mean() / error;
}

json Race::save() const {
  json halves = json::array();
  for (const auto& [group, half] : halves_)
    halves.push_back({group, static_cast<int>(half.first), half.second});
  return {{"incumbent", incumbent_.samples},
          {"challenger", challenger_.samples},
          {"pairs", pairs_},
          {"sum", sum_},
          {"squares", squares_},
          {"halves", std::move(halves)}};
}

}  // namespace allot::policy
