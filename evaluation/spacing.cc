#include "evaluation/spacing.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "kernels/sampling.h"

namespace allot::evaluation {
namespace {

constexpr std::array<std::string_view, 3> kSpacings = {"iid", "strat", "sys"};

}  // namespace

Spacing parse_spacing(std::string_view name) {
  const auto found = std::ranges::find(kSpacings, name);
  if (found == kSpacings.end())
    throw InvalidArgument(fmt::format("'{}' is no spacing of draws; iid, strat or sys is expected", name));
  return static_cast<Spacing>(found - kSpacings.begin());
}

std::string_view name(Spacing spacing) {
  return kSpacings[static_cast<size_t>(spacing)];
}

double target_of(Spacing spacing, const DrawRow& draws, int64_t s, int64_t samples) {
  const auto number = static_cast<int32_t>(s);
  const auto count = static_cast<int32_t>(samples);
  switch (spacing) {
    case Spacing::kIndependent:
      return kernels::independent_target<double>(draw_uniform(draws, static_cast<uint32_t>(s)));
    case Spacing::kStratified:
      return kernels::stratum_target<double>(number, count, draw_uniform(draws, static_cast<uint32_t>(s)));
    case Spacing::kSystematic:
      return kernels::stratum_target<double>(number, count, draw_uniform(draws, kernels::kRowDraw));
  }
  return 1;
}

DrawRow stream_draws(uint32_t seed, int64_t repetition, uint32_t stream, int64_t position) {
  return {.key = {.run_seed = seed},
          .question = static_cast<uint32_t>(repetition),
          .layer = stream,
          .position = static_cast<uint32_t>(position)};
}

void fill_normal(const DrawRow& draws, std::span<float> elements) {
  for (size_t i = 0; i < elements.size(); i += 2) {
    const double radius =
        std::sqrt(-2 * std::log(1 - static_cast<double>(draw_uniform(draws, static_cast<uint32_t>(i)))));
    const double angle =
        2 * std::numbers::pi * static_cast<double>(draw_uniform(draws, static_cast<uint32_t>(i + 1)));
    elements[i] = static_cast<float>(radius * std::cos(angle));
    if (i + 1 < elements.size()) elements[i + 1] = static_cast<float>(radius * std::sin(angle));
  }
}

}  // namespace allot::evaluation
