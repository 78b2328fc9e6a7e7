// What a learner declares about itself. A learner is one file, policy/learners/<name>.cc, that defines
//   namespace allot::policy::learner_rows { extern const Learner <name>{…}; }
// and one line in policy/CMakeLists.txt, from which the table of learners is made. Options, validation, specs
// and reports follow from the declaration, and tests/policy holds every learner to what policy.h promises.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policy/policy.h"

namespace allot::policy {

// A number that the user of a learner may choose.
struct Parameter {
  std::string_view name;  // "gain_offset" in specs and states; the option is --gain-offset
  bool whole = false;     // whole numbers only
  // It came to a learner that runs had used: at its default it is left out of specs, so that theirs say the
  // same.
  bool later = false;
  double initial = 0;  // the default
  double least = 0;
  double most = 0;
  std::string_view hint;  // how --help writes the value: "A"
  std::string_view help;  // what it does, one line
};

// The name as an option: "gain-offset".
std::string option_name(const Parameter& parameter);
// Whether `value` is finite, within the range, and whole where it must be.
bool accepts(const Parameter& parameter, double value);
// "from 0 to 1", "a whole number from 2 to 100000".
std::string expected_values(const Parameter& parameter);

struct Learner {
  std::string_view name;     // the value of --policy
  std::string_view summary;  // what it does, one line without a full stop
  std::span<const Parameter> parameters;
  int64_t max_policy_lag = 50;  // unless the user says otherwise
  // Whether it learns from rewards of several kinds in one run, a group of proposals always of one kind.
  bool mixes_kinds = false;
  // How many divergences it wants before answers, where the run does not say; null: it does not need any.
  int64_t (*divergences)(int layers) = nullptr;
  // Whether Policy::costs() may say something.
  bool knows_costs = false;
  // The largest total that it learns over `layers` layers; null: none of its own.
  int64_t (*most_total)(int layers) = nullptr;
  // Makes the learner from a validated configuration.
  std::unique_ptr<Policy> (*make)(const PolicyConfig& config) = nullptr;
  // Makes a learner that continues from the fields that save() gave to write_state (policy/state.h). May
  // throw what nlohmann::json or the checks of policy/state.h throw.
  std::unique_ptr<Policy> (*restore)(const PolicyConfig& config, const nlohmann::json& state) = nullptr;

  // The parameter of that name; null when there is none.
  const Parameter* find(std::string_view parameter) const;
};

// All learners, in the order of policy/CMakeLists.txt; the first is the default.
std::span<const Learner* const> learners();
// The learner of that name; null when there is none.
const Learner* find_learner(std::string_view name);

// The value that the configuration gives a parameter of its learner, else the declared default. Throws
// std::logic_error when the learner declares no such parameter.
double parameter(const PolicyConfig& config, std::string_view name);

// What useful_in_flight() is for a learner whose updates take this many outcomes.
std::optional<int64_t> useful_in_flight(const PolicyConfig& config, int64_t outcomes_per_update);

// The bounds of each layer; those of a validated configuration are sound.
Limits limits_of(const PolicyConfig& config);
// The apportionment of these shares by the configuration's total and floor within its bounds. Where learners
// turn shares into a schedule, they do so by this.
Schedule apportion(std::span<const double> shares, const PolicyConfig& config);

// The schedule that learning starts from: the configuration's, else the even one within its bounds.
Schedule start_schedule(const PolicyConfig& config);
// Policy logits of it, with mean 0: all 0 without a start in the configuration, else logs of the samples
// above the floor, of which a layer without any has a half or, where half samples would change the others,
// less: apportioning them gives the start exactly. [layers]
std::vector<double> start_logits(const PolicyConfig& config);

}  // namespace allot::policy
