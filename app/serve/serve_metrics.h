// What `allot serve` tells Prometheus. No label has a value that a client chooses.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "app/serve/batcher.h"

namespace allot::app {

class ServeMetrics {
 public:
  void add_answer(std::chrono::duration<double> took);  // written to its end or broken off
  void add_error(int status);
  // Text format 0.0.4; docs/serving.md lists the metrics.
  std::string text(const BatcherCounters& counters) const;

 private:
  mutable std::mutex mutex_;
  std::map<int, int64_t> errors_;  // by HTTP status
  int64_t answers_ = 0;
  double answer_seconds_ = 0;
};

}  // namespace allot::app
