// Keeps a log readable, and a disk from filling, whatever peers send: of each kind of line a few in each
// period, and a count of what was left out. Pure: time comes in as an argument.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace allot::aggregator {

enum class LogKind : uint8_t {
  kUnreadable,
  kNotAllowed,
  kMismatched,
  kRejected,
  kWorkerHere,
  kWorkerSilent,
  kLeaseExpired,
  kFailure,
  kGivenUp,
  kWaiting,
  kDisagreement,
  kOverRate,
};
inline constexpr size_t kLogKinds = 12;

// "messages that could not be read"
std::string_view plural_of(LogKind kind);

class LogLimiter {
 public:
  static constexpr int kLines = 20;  // of a kind in a period
  static constexpr Duration kPeriod{10'000};

  // Whether a line of this kind may be written now. Returns nothing when it is to be left out; else how many
  // were left out since the last one that was written.
  [[nodiscard]] std::optional<int64_t> admit(LogKind kind, Timestamp now);
  // The kinds of which lines were left out in a period that is over, with their numbers. Each is told once.
  [[nodiscard]] std::vector<std::pair<LogKind, int64_t>> left_out(Timestamp now);

 private:
  struct Kind {
    Timestamp began{};  // of the period
    int lines = 0;
    int64_t left_out = 0;
  };
  std::array<Kind, kLogKinds> kinds_;
};

}  // namespace allot::aggregator
