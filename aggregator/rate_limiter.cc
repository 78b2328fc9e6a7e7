#include "aggregator/rate_limiter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace allot::aggregator {

RateLimiter::RateLimiter(const RateLimits& limits) : limits_(limits), shared_{limits.burst, {}, {}} {
  if (!(limits.per_second > 0) || !(limits.burst >= 1) || limits.max_senders == 0) {
    throw InvalidArgument(
        fmt::format("rate limits of {} messages a second, {} at once and {} senders; more than 0, at least 1 "
                    "and at least 1 are expected",
                    limits.per_second, limits.burst, limits.max_senders));
  }
  time_to_fill_ = Duration{static_cast<int64_t>(std::ceil(1000 * limits.burst / limits.per_second))};
}

RateLimiter::Bucket& RateLimiter::bucket_of(const std::string& sender, Timestamp now) {
  const auto known = buckets_.find(sender);
  if (known != buckets_.end()) return known->second;
  if (buckets_.size() >= limits_.max_senders && now >= next_forgetting_) {
    next_forgetting_ = now + time_to_fill_;
    std::erase_if(buckets_, [&](const auto& entry) { return now - entry.second.filled >= time_to_fill_; });
  }
  if (buckets_.size() >= limits_.max_senders) return shared_;
  return buckets_.emplace(sender, Bucket{limits_.burst, now, {}}).first->second;
}

std::optional<RateLimiter::Excess> RateLimiter::excess(const std::string& sender, Timestamp now) {
  Bucket& bucket = bucket_of(sender, now);
  const double seconds =
      std::chrono::duration<double>(std::max(now - bucket.filled, Duration::zero())).count();
  bucket.tokens = std::min(limits_.burst, bucket.tokens + seconds * limits_.per_second);
  bucket.filled = std::max(bucket.filled, now);
  if (bucket.tokens >= 1) {
    bucket.tokens -= 1;
    return std::nullopt;
  }
  const double missing_ms = 1000 * (1 - bucket.tokens) / limits_.per_second;
  const Duration wait = std::max(kLeastWait, Duration{static_cast<int64_t>(std::ceil(missing_ms))});
  if (now < bucket.told_until) return Excess{wait, false};
  bucket.told_until = now + wait;
  return Excess{wait, true};
}

}  // namespace allot::aggregator
