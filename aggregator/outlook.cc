#include "aggregator/outlook.h"

namespace allot::aggregator {
namespace {

constexpr const char* kGain = "outlook_gain";
constexpr const char* kLow = "outlook_low";
constexpr const char* kHigh = "outlook_high";
constexpr const char* kLeft = "outlook_left";

}  // namespace

policy::Description describe_with_outlook(const policy::Policy& policy) {
  policy::Description described = policy.describe();
  if (const auto outlook = policy.outlook()) {
    const auto& gain = outlook->over_even;
    described.scalars.insert(
        described.scalars.end(),
        {{kGain, gain.mean}, {kLow, gain.low}, {kHigh, gain.high}, {kLeft, outlook->left_to_gain}});
  }
  return described;
}

std::optional<policy::Outlook> outlook_of(const policy::Description& described) {
  const double *gain = described.find(kGain), *low = described.find(kLow), *high = described.find(kHigh),
               *left = described.find(kLeft);
  if (gain == nullptr || low == nullptr || high == nullptr || left == nullptr) return std::nullopt;
  return policy::Outlook{.over_even = {*gain, *low, *high}, .left_to_gain = *left};
}

bool is_of_outlook(std::string_view scalar) {
  for (const char* name : {kGain, kLow, kHigh, kLeft})
    if (scalar == name) return true;
  return false;
}

}  // namespace allot::aggregator
