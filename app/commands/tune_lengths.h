// tune --lengths: a run for each band of prompt lengths, and whether choosing by length pays.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "app/cli/options.h"
#include "app/files/schedule_file.h"
#include "app/run/run_spec_builder.h"

namespace allot::app {

struct LengthsRequest {
  std::vector<int64_t> lengths;  // the most tokens of each band's prompts
  RunOptions run;                // run.run is the directory of all; data and heldout are whole
  std::string device;            // that answers the held-out questions
  int32_t threads = 0;
  int32_t max_sequences = 0;  // 0 = the default of eval
  std::string grader;
  bool json = false;
};

// Splits the data by the lengths of their prompts, learns on each band in run.run/up-to-N by `tune`, which is
// run_tune, with the options of `set`, asks every held-out question under every band's schedule and the even
// one, writes lengths.json, and schedule.json with bands where they pay and else the best one, and prints the
// table. What an earlier call has done is not done again. Returns the exit code. Throws UsageError where a
// prompt is longer than all lengths, where a band has no questions, or where the data are not JSON lines.
int tune_lengths(const LengthsRequest& request, const OptionSet& set,
                 const std::function<int(std::span<const std::string>)>& tune);

}  // namespace allot::app
