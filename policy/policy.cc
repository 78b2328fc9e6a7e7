#include "policy/policy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "policy/exact_layers.h"
#include "policy/learner.h"
#include "policy/state.h"

namespace allot::policy {
namespace {

// Gathers the faults of a configuration, so that all are reported at once.
class Faults {
 public:
  template <class Number>
  void expect(bool holds, const char* field, Number value, const std::string& expected) {
    if (holds) return;
    std::ostringstream fault;
    fault << field << " is " << value << ", expected " << expected;
    add(fault.str());
  }

  void add(const std::string& fault) { text_ += (text_.empty() ? "" : "; ") + fault; }

  template <class Number>
  void expect_within(const char* field, Number value, Number least, Number most) {
    // Checked before anything is formatted, since formatting took a third of the time of making a core.
    if (value >= least && value <= most) return;
    std::ostringstream range;
    range << least << " to " << most;
    expect(false, field, value, range.str());
  }

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// "a, b, c".
template <class Range, class Name>
std::string joined(const Range& range, Name name) {
  std::string names;
  for (const auto& one : range) names += (names.empty() ? "" : ", ") + name(one);
  return names;
}

void check_parameters(const Learner& learner, const PolicyConfig& config, Faults* faults) {
  for (const auto& [name, value] : config.parameters) {
    const Parameter* declared = learner.find(name);
    if (declared == nullptr) {
      faults->expect(
          false, name.c_str(), value,
          "one of the parameters of " + config.name + ": " + joined(learner.parameters, option_name));
    } else if (!accepts(*declared, value)) {
      faults->expect(false, option_name(*declared).c_str(), value, expected_values(*declared));
    }
  }
}

int sampled_layers(const PolicyConfig& config) {
  return config.layers - static_cast<int>(config.bounds.exact_layers(config.layers).size());
}

// Judged once layers and total are sound.
void check_most_total(const Learner& learner, const PolicyConfig& config, Faults* faults) {
  const int layers = sampled_layers(config);
  const auto takes = [&](const Learner& other) {
    return other.most_total == nullptr || layers == 0 || config.total <= other.most_total(layers);
  };
  if (takes(learner)) return;
  std::ostringstream expected;
  expected << "at most " << learner.most_total(layers) << " over " << layers << " layers with policy "
           << learner.name << "; use policy";
  const char* before = " ";
  for (const Learner* other : learners())
    if (takes(*other)) expected << std::exchange(before, " or ") << other->name;
  faults->expect(false, "total", config.total, expected.str());
}

// Judged once the other fields are sound.
void check_bounds(const PolicyConfig& config, Faults* faults) {
  try {
    (void)limits_of(config);
  } catch (const InvalidArgument& fault) {
    faults->add(fault.what());
  }
}

// Judged once the other fields and the bounds are sound.
void check_start(const PolicyConfig& config, Faults* faults) {
  const Schedule& start = config.start;
  if (start.samples.empty()) return;
  try {
    check_schedule(start, config.layers, config.floor, config.total);
    check_limits(start, limits_of(config));
  } catch (const InvalidArgument& fault) {
    faults->expect(false, "start", start.to_string(),
                   std::to_string(config.total) + " samples over " + std::to_string(sampled_layers(config)) +
                       " layers, at least " + std::to_string(config.floor) + " in each (" + fault.what() +
                       ")");
  }
}

}  // namespace

void validate(const PolicyConfig& config) {
  constexpr int kMostLayers = 65534;  // layer numbers of Philox rows end there (base/philox.h)
  Faults faults;
  const Learner* learner = find_learner(config.name);
  if (learner == nullptr) {
    faults.expect(false, "policy", "'" + config.name + "'",
                  "one of " + joined(policy_names(), [](const std::string& name) { return name; }));
  }
  faults.expect_within("layers", config.layers, 1, kMostLayers);
  faults.expect_within("floor", config.floor, 0, std::numeric_limits<int32_t>::max());
  const int64_t least_total = std::max<int64_t>(1, int64_t{sampled_layers(config)} * config.floor);
  faults.expect_within<int64_t>("total", config.total, least_total, std::numeric_limits<int32_t>::max());
  faults.expect(config.max_policy_lag >= 0, "max-policy-lag", config.max_policy_lag, "at least 0 versions");
  faults.expect(config.divergence_episodes >= 0, "divergence-episodes", config.divergence_episodes,
                "at least 0");
  if (learner != nullptr) check_parameters(*learner, config, &faults);
  if (faults.text().empty()) check_most_total(*learner, config, &faults);
  if (faults.text().empty()) check_bounds(config, &faults);
  if (faults.text().empty()) check_start(config, &faults);
  if (!faults.text().empty()) throw InvalidArgument("policy configuration: " + faults.text());
}

double entropy(const std::vector<double>& shares) {
  double sum = 0;
  for (const double share : shares) sum -= share > 0 ? share * std::log(share) : 0;
  return sum;
}

Description describe_shares(std::vector<double> shares) {
  const double of_all = entropy(shares);
  return {.per_layer = std::move(shares), .scalars = {{"entropy", of_all}}};
}

const double* Description::find(std::string_view name) const {
  const auto found = std::ranges::find(scalars, name, &Scalar::name);
  return found == scalars.end() ? nullptr : &found->value;
}

uint64_t Policy::digest() const {
  return StateDigest().add(save()).value();
}

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const Learner* learner : learners()) names.emplace_back(learner->name);
  return names;
}

std::unique_ptr<Policy> make_policy(const PolicyConfig& config) {
  validate(config);
  return with_exact_layers(config, find_learner(config.name)->make(sampled_part(config)));
}

PolicyConfig rebound(PolicyConfig config, const Bounds& bounds) {
  const auto exact = [&] { return config.bounds.exact_layers(config.layers); };
  const std::vector<int32_t> before = exact();
  config.bounds = bounds;
  if (exact() != before) {
    const auto text = [](const std::vector<int32_t>& layers) {
      return layers.empty() ? "none" : joined(layers, [](int32_t layer) { return std::to_string(layer); });
    };
    throw InvalidArgument("bounds: exact layers are chosen when a run begins; this one's are " +
                          text(before) + ", those of " + bounds.to_string() + " " + text(exact()));
  }
  const PolicyConfig part = sampled_part(config);
  if (!part.start.samples.empty())
    config.start = with_exact_layers(config, kept(part.start, part.floor, limits_of(part)));
  validate(config);
  return config;
}

std::unique_ptr<Policy> restore_policy(const PolicyConfig& config, std::string_view state) {
  validate(config);
  const PolicyConfig part = sampled_part(config);
  const nlohmann::json learner = read_state(part, state);
  try {
    return with_exact_layers(config, find_learner(config.name)->restore(part, learner));
  } catch (const nlohmann::json::exception& error) {
    require_state(false, error.what());
  } catch (const InvalidArgument& error) {
    require_state(false, error.what());
  }
  return nullptr;
}

}  // namespace allot::policy
