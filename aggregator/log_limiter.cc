#include "aggregator/log_limiter.h"

#include <utility>

namespace allot::aggregator {

std::string_view plural_of(LogKind kind) {
  constexpr std::array<std::string_view, kLogKinds> kNames = {"messages that could not be read",
                                                              "messages that a key does not allow",
                                                              "workers that were refused",
                                                              "results that were rejected",
                                                              "workers that said hello",
                                                              "workers that fell silent",
                                                              "leases that expired",
                                                              "episodes that failed",
                                                              "episodes that were given up",
                                                              "workers that have to wait",
                                                              "checks that disagreed",
                                                              "senders above their rate"};
  return kNames[static_cast<size_t>(kind)];
}

std::optional<int64_t> LogLimiter::admit(LogKind kind, Timestamp now) {
  Kind& counted = kinds_[static_cast<size_t>(kind)];
  if (now - counted.began >= kPeriod) {
    counted.began = now;
    counted.lines = 0;
  }
  if (counted.lines == kLines) {
    ++counted.left_out;
    return std::nullopt;
  }
  ++counted.lines;
  return std::exchange(counted.left_out, 0);
}

std::vector<std::pair<LogKind, int64_t>> LogLimiter::left_out(Timestamp now) {
  std::vector<std::pair<LogKind, int64_t>> told;
  for (size_t kind = 0; kind < kLogKinds; ++kind) {
    Kind& counted = kinds_[kind];
    if (counted.left_out == 0 || now - counted.began < kPeriod) continue;
    told.emplace_back(static_cast<LogKind>(kind), std::exchange(counted.left_out, 0));
  }
  return told;
}

}  // namespace allot::aggregator
