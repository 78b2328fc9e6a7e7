// A finished run made up for tests of what is written from a run: plausible numbers, the same every time.
#pragma once

#include "aggregator/run_data.h"

namespace allot::app {

struct ExampleShape {
  int layers = 8;
  int64_t total = 64;
  int episodes = 120;
  int episodes_per_update = 10;
  uint32_t questions = 200;  // held out
};

// Two of three layers lose samples to layer 0; rewards rise from about 15 % to about 80 %.
aggregator::RunData example_run(const ExampleShape& shape = {});

}  // namespace allot::app
