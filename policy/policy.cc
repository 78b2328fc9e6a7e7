#include "policy/policy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "policy/pairs.h"
#include "policy/reinforce.h"
#include "policy/state.h"

namespace allot::policy {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Gathers the faults of a configuration, so that all are reported at once.
class Faults {
 public:
  template <class Number>
  void expect(bool holds, const char* field, Number value, const std::string& expected) {
    if (holds) return;
    std::ostringstream fault;
    fault << field << " is " << value << ", expected " << expected;
    text_ += (text_.empty() ? "" : "; ") + fault.str();
  }

  template <class Number>
  void expect_within(const char* field, Number value, Number least, Number most) {
    // Before anything is formatted: that took a third of the time of making a core.
    if (value >= least && value <= most) return;
    std::ostringstream range;
    range << least << " to " << most;
    expect(false, field, value, range.str());
  }

  void expect_positive(const char* field, double value) {
    expect(value > 0 && value < kInfinity, field, value, "a finite number above 0");
  }

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string joined_names() {
  std::string names;
  for (const std::string& name : policy_names()) names += (names.empty() ? "" : ", ") + name;
  return names;
}

}  // namespace

void validate(const PolicyConfig& config) {
  constexpr int kMostLayers = 65534;  // layer numbers of Philox rows end there (base/philox.h)
  constexpr int kMostPerUpdate = 1'000'000;
  Faults faults;
  faults.expect(std::ranges::count(policy_names(), config.name) == 1, "policy", "'" + config.name + "'",
                "one of " + joined_names());
  faults.expect_within("layers", config.layers, 1, kMostLayers);
  faults.expect_within("floor", config.floor, 0, std::numeric_limits<int32_t>::max());
  const int64_t least_total = std::max<int64_t>(1, int64_t{config.layers} * config.floor);
  faults.expect_within<int64_t>("total", config.total, least_total, std::numeric_limits<int32_t>::max());
  faults.expect(config.max_policy_lag >= 0, "max-policy-lag", config.max_policy_lag, "at least 0 versions");
  faults.expect_positive("learning-rate", config.learning_rate);
  faults.expect_within("episodes-per-update", config.episodes_per_update, 2, kMostPerUpdate);
  faults.expect_within("pairs-per-update", config.pairs_per_update, 1, kMostPerUpdate);
  faults.expect(config.perturbation > 0 && config.perturbation <= 10, "perturbation", config.perturbation,
                "above 0 and at most 10");
  faults.expect_within("perturbation-decay", config.perturbation_decay, 0.0, 1.0);
  faults.expect_positive("gain", config.gain);
  faults.expect(config.gain_offset >= 0 && config.gain_offset < kInfinity, "gain-offset", config.gain_offset,
                "a finite number of at least 0");
  faults.expect_within("gain-decay", config.gain_decay, 0.0, 1.0);
  if (!faults.text().empty()) throw InvalidArgument("policy configuration: " + faults.text());
}

double entropy(const std::vector<double>& shares) {
  double sum = 0;
  for (const double share : shares) sum -= share > 0 ? share * std::log(share) : 0;
  return sum;
}

std::vector<std::string> policy_names() {
  return {"pairs", "reinforce-paper", "reinforce"};
}

int64_t default_max_policy_lag(std::string_view name) {
  return name == "reinforce-paper" ? kNoPolicyLagLimit : PolicyConfig{}.max_policy_lag;
}

std::unique_ptr<Policy> make_policy(const PolicyConfig& config) {
  validate(config);
  if (config.name == "pairs") return std::make_unique<Pairs>(config);
  return std::make_unique<Reinforce>(config);
}

std::unique_ptr<Policy> restore_policy(const PolicyConfig& config, std::string_view state) {
  validate(config);
  const nlohmann::json learner = read_state(config, state);
  try {
    if (config.name == "pairs") return std::make_unique<Pairs>(config, learner);
    return std::make_unique<Reinforce>(config, learner);
  } catch (const nlohmann::json::exception& error) {
    require_state(false, error.what());
  } catch (const InvalidArgument& error) {
    require_state(false, error.what());
  }
  return nullptr;
}

}  // namespace allot::policy
