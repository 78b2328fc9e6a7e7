// Limits how many messages each sender may send: a bucket of tokens per sender, filled at a steady rate.
// Pure: time comes in as an argument. Memory is bounded: a sender that was quiet until its bucket was full
// again is forgotten, and when there are too many senders anyway, the additional ones share one bucket.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/clock.h"

namespace allot::aggregator {

struct RateLimits {
  double per_second = 1'000;    // messages of one sender per second
  double burst = 5'000;         // messages at once after a quiet time; at least 1
  size_t max_senders = 50'000;  // senders with a bucket of their own
};

class RateLimiter {
 public:
  // Throws InvalidArgument when a limit is not positive or the burst is below 1.
  explicit RateLimiter(const RateLimits& limits);

  struct Excess {
    Duration wait{};    // when to send again, at least kLeastWait from now
    bool tell = false;  // the sender has not been told so, or its time is over: it goes on in spite of that
  };
  static constexpr Duration kLeastWait{100};

  // Counts one message of `sender`. Returns nothing when the message may be handled; otherwise it is over the
  // limit.
  [[nodiscard]] std::optional<Excess> excess(const std::string& sender, Timestamp now);

  size_t num_senders() const { return buckets_.size(); }

 private:
  struct Bucket {
    double tokens;
    Timestamp filled;
    Timestamp told_until{};  // it has been told to wait until then
  };
  Bucket& bucket_of(const std::string& sender, Timestamp now);

  RateLimits limits_;
  Duration time_to_fill_;
  std::unordered_map<std::string, Bucket> buckets_;
  Bucket shared_;
  Timestamp next_forgetting_{};
};

}  // namespace allot::aggregator
