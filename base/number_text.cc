#include "base/number_text.h"

#include <spdlog/fmt/fmt.h>

#include <cmath>

namespace allot {

std::string percent(double ratio, int decimals) {
  return fmt::format("{:.{}f}%", 100 * ratio, decimals);
}

std::string percent_range(double low, double high) {
  return fmt::format("{:.1f} to {}", 100 * low, percent(high));
}

std::string percent_with_range(double ratio, double low, double high) {
  return fmt::format("{} ({:.1f} to {:.1f})", percent(ratio), 100 * low, 100 * high);
}

std::string points(double difference) {
  return fmt::format("{:+.1f} points", 100 * difference);
}

std::string points_range(double low, double high) {
  return fmt::format("{:+.1f} to {:+.1f}", 100 * low, 100 * high);
}

std::string points_with_range(double difference, double low, double high) {
  return fmt::format("{} ({})", points(difference), points_range(low, high));
}

std::string p_value_text(double p) {
  constexpr double kLeast = 1e-300;
  if (p < kLeast) return "< 1e-300";
  return p >= 0.001 ? fmt::format("= {:.3f}", p) : fmt::format("= {:.1e}", p);
}

std::string duration_text(double seconds) {
  if (!(seconds >= 0)) return "?";
  const auto whole = std::llround(seconds);
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  return fmt::format("{}h {:02}m", whole / 3600, whole / 60 % 60);
}

}  // namespace allot
