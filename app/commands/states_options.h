// Options of the analyses of one query's estimates: its states, random or a model's, and how many estimates.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "app/cli/options.h"
#include "app/cli/stop_signal.h"
#include "app/files/states_file.h"
#include "app/view/progress_line.h"
#include "base/error.h"
#include "evaluation/variance.h"

namespace allot::app {

class StatesOptions {
 public:
  StatesOptions(std::string samples, int64_t replicates) : samples_(std::move(samples)) {
    setting_.replicates = replicates;
  }
  StatesOptions(const StatesOptions&) = delete;

  void add(OptionSet& set);
  // After parsing; reads the files of states where some are named. Throws InvalidArgument, what StatesFile
  // throws, and CorruptFile where two files have states of other shapes.
  const evaluation::VarianceSetting& setting();
  // "a query over 8192 keys, …"
  std::string description() const;
  // The fields of a JSON row that say what was measured.
  nlohmann::ordered_json json() const;
  nlohmann::ordered_json json(evaluation::Spacing spacing) const;

 private:
  evaluation::VarianceSetting setting_;
  std::string samples_;
  std::vector<std::string> names_;
  std::string layers_ = "all";
  int64_t seed_ = 0;
  std::deque<StatesFile> files_;
  evaluation::AttentionStates states_;  // of all files
};

// What `measure`, one of evaluation's, finds for each spacing of the draws. Throws Error when it was stopped.
template <class Row, class Measure>
std::vector<std::pair<evaluation::Spacing, std::vector<Row>>> measure_spacings(StatesOptions& options,
                                                                               Measure measure) {
  using enum evaluation::Spacing;
  evaluation::VarianceSetting setting = options.setting();
  std::vector<std::pair<evaluation::Spacing, std::vector<Row>>> measured;
  for (const evaluation::Spacing spacing : {kIndependent, kStratified, kSystematic}) {
    setting.spacing = spacing;
    ProgressLine line(fmt::format("heads, draws as of {}", evaluation::name(spacing)));
    measured.emplace_back(spacing, measure(
                                       setting, [&](int64_t done) { line.update(done, setting.heads); },
                                       &watch_stop_signals()));
    if (measured.back().second.empty())
      throw Error("stopped before all heads were measured; no result is printed");
  }
  return measured;
}

}  // namespace allot::app
