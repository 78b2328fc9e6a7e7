// Whether an aggregator works on a run directory, and whether it answers who asks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "app/run/key_options.h"
#include "base/clock.h"
#include "wire/messages_fwd.h"

namespace allot::app {

enum class AggregatorState : uint8_t {
  kAnswers,
  kSilent,    // it runs and did not answer: it is starting, stopped, or hangs
  kNeedsKey,  // it runs and answers only who shows a key that it knows
  kNone,
};
std::string_view name(AggregatorState state);  // "answers", "silent", "needs key", "none"

struct AskedAggregator {
  AggregatorState state = AggregatorState::kNone;
  std::string why = {};  // where it does not answer, in words, with what to do
};

// Asks the aggregator of `run` for its status, which `status` gets where it answers. The lock of the
// directory tells one that runs from one that was killed, which leaves its address behind. Throws the errors
// of keys that cannot be read.
AskedAggregator ask_aggregator_of(const std::filesystem::path& run, const KeyOptions& keys, Duration timeout,
                                  wire::Status* status);

}  // namespace allot::app
