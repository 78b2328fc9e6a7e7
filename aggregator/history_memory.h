// A history without a file, with the behaviour of the one in SQLite: for tests.
#pragma once

#include <memory>
#include <vector>

#include "aggregator/history.h"
#include "base/clock.h"
#include "wire/messages.pb.h"

namespace allot::aggregator {

// What a history in memory writes to; it outlives its openings, as a file does.
struct MemoryStore {
  std::vector<Record> records;
  wire::Counters counters;
  struct Epoch {
    Timestamp started, last;
  };
  std::vector<Epoch> epochs;  // epoch number = place + 1
};

std::unique_ptr<History> open_memory_history(MemoryStore* store, Timestamp now);

}  // namespace allot::aggregator
