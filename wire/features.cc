#include "wire/features.h"

#include <fmt/format.h>

#include <algorithm>

#include "wire/messages.pb.h"

namespace allot::wire {
namespace {

struct Feature {
  std::string_view name;
  // What the spec says of it; empty where it asks for nothing. The further tasks of an evaluation say the
  // same (aggregator/run_spec.h).
  std::string (*asked)(const RunSpec& spec);
};

constexpr Feature kFeatures[] = {
    {"generation.keys", [](const RunSpec& spec) { return spec.generation().keys(); }},
    {"generation.weights", [](const RunSpec& spec) { return spec.generation().weights(); }},
};

}  // namespace

std::vector<std::string_view> known_features() {
  std::vector<std::string_view> names;
  for (const Feature& one : kFeatures) names.push_back(one.name);
  return names;
}

std::vector<std::string> missing_features(const RunSpec& spec, const Hello& hello) {
  std::vector<std::string> missing;
  for (const Feature& one : kFeatures) {
    const std::string asked = one.asked(spec);
    if (asked.empty() || std::ranges::find(hello.features(), one.name) != hello.features().end()) continue;
    missing.push_back(fmt::format("{} ({})", one.name, asked));
  }
  return missing;
}

}  // namespace allot::wire
