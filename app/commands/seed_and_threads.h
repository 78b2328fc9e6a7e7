// The options of analyses that draw at random, on several threads.
#pragma once

#include <cstdint>

#include "app/cli/options.h"

namespace allot::app {

inline void declare_seed_and_threads(OptionSet* set, int64_t* seed, int* threads) {
  set->integer("seed", seed, 0, UINT32_MAX, "N", "seed of all random draws");
  set->integer("threads", threads, 0, 4096, "N", "threads; 0 takes all cores");
}

}  // namespace allot::app
