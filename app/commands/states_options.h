// Options of the analyses of one query's estimates: its states, random or a model's, and how many estimates.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "app/cli/options.h"
#include "app/files/states_file.h"
#include "evaluation/variance.h"

namespace allot::app {

class StatesOptions {
 public:
  StatesOptions(std::string samples, int64_t replicates) : samples_(std::move(samples)) {
    setting_.replicates = replicates;
  }
  StatesOptions(const StatesOptions&) = delete;

  void add(OptionSet& set);
  // After parsing; reads the file of states where one is named. Throws InvalidArgument and what
  // StatesFile throws.
  evaluation::VarianceSetting& setting();
  // "a query over 8192 keys, …"
  std::string description() const;
  // The fields of a JSON row that say what was measured.
  nlohmann::ordered_json json(evaluation::Spacing spacing) const;

 private:
  evaluation::VarianceSetting setting_;
  std::string samples_;
  std::string file_;
  int64_t seed_ = 0;
  std::optional<StatesFile> states_;
};

}  // namespace allot::app
