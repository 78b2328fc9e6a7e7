// What the holder of one worker's key may send to an aggregator beside honest workers: everything but answers
// that look right, which no aggregator can tell from honest ones.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "wire/keys.h"

namespace allot::aggregator {

// Until `stop`: under ever new names it takes leases and reports failures, holds them without a word, gives
// results that do not fit, answers and gives back leases of others, asks for control, and sends bytes that
// nobody can read. What it does is drawn under `seed`. Reconnects to an aggregator that was started again.
void work_against(const std::string& endpoint, const std::optional<wire::ClientKeys>& keys, uint64_t seed,
                  const std::atomic<bool>& stop);

}  // namespace allot::aggregator
