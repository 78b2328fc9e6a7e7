// A history without a file that behaves like the one in SQLite; for tests.
#pragma once

#include <memory>
#include <vector>

#include "aggregator/history.h"
#include "base/clock.h"
#include "wire/messages.pb.h"

namespace allot::aggregator {

// What a history in memory writes to. Like a file, it outlives the histories that were opened on it.
struct MemoryStore {
  std::vector<Record> records;
  wire::Counters counters;
  struct Epoch {
    Timestamp started, last;
  };
  std::vector<Epoch> epochs;  // epoch number = index + 1
};

std::unique_ptr<History> open_memory_history(MemoryStore* store, Timestamp now);

}  // namespace allot::aggregator
