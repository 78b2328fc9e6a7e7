#include "app/run/policy_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "policy/learner.h"

namespace allot::app {
namespace {

// Reads the whole text as a finite number, else gives nothing.
template <class Number>
std::optional<Number> parse(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// A parameter of one learner or of several; those that share a name share an option.
struct SharedParameter {
  std::string name;
  std::string option;
  std::vector<const policy::Learner*> learners;

  const policy::Parameter& of(const policy::Learner& learner) const { return *learner.find(name); }
};

// In the order in which the learners declare them.
std::vector<SharedParameter> shared_parameters() {
  std::vector<SharedParameter> all;
  for (const policy::Learner* learner : policy::learners()) {
    for (const policy::Parameter& declared : learner->parameters) {
      auto found = std::ranges::find(all, declared.name, &SharedParameter::name);
      if (found == all.end()) {
        found = all.insert(all.end(), {std::string(declared.name), policy::option_name(declared), {}});
      }
      found->learners.push_back(learner);
    }
  }
  return all;
}

std::string names_of(const std::vector<const policy::Learner*>& learners) {
  std::vector<std::string_view> names;
  for (const policy::Learner* learner : learners) names.push_back(learner->name);
  return fmt::format("{}", fmt::join(names, " and "));
}

// What a value must be: said once when the learners agree, else once for each.
std::string values_of(const SharedParameter& shared) {
  std::string text;
  for (const policy::Learner* learner : shared.learners) {
    const policy::Parameter& declared = shared.of(*learner);
    const std::string values =
        fmt::format("{}; default {}", policy::expected_values(declared), declared.initial);
    if (text == values) continue;
    text += (text.empty() ? "" : "; " + std::string(learner->name) + ": ") + values;
  }
  return text;
}

std::string lag_text(int64_t versions) {
  return versions == policy::kNoPolicyLagLimit ? "none" : std::to_string(versions);
}

int64_t lag_of(const PolicyOptions& policy) {
  const policy::Learner* learner = policy::find_learner(policy.name);
  return policy.max_policy_lag.value_or(learner == nullptr ? policy::PolicyConfig{}.max_policy_lag
                                                           : learner->max_policy_lag);
}

void declare_max_policy_lag(OptionSet* options, PolicyOptions* policy) {
  std::vector<std::string> defaults;
  for (const policy::Learner* learner : policy::learners()) {
    defaults.push_back(fmt::format("{} for {}", lag_text(learner->max_policy_lag), learner->name));
  }
  options->custom(
      {.name = "max-policy-lag",
       .hint = "V",
       .help = "an outcome is stored but not learned from when the policy has been updated more "
               "than V times since it was asked for; none = there is no such limit",
       .range = fmt::format("a whole number of at least 0, or none; default {}", fmt::join(defaults, ", ")),
       .set = [policy](const std::string& text) -> std::string {
         const auto versions = text == "none" ? policy::kNoPolicyLagLimit : parse<int64_t>(text);
         if (!versions || *versions < 0) {
           return "a whole number of at least 0, or none, is expected";
         }
         policy->max_policy_lag = versions;
         return "";
       },
       .get = [policy] { return std::vector{lag_text(lag_of(*policy))}; }});
}

void declare_policy_option(OptionSet* options, PolicyOptions* policy) {
  options->custom({.name = "policy-option",
                   .hint = "NAME=VALUE",
                   .help = "sets a parameter of the policy, as --NAME VALUE does; may be given several times",
                   .repeatable = true,
                   .belongs_to = "policy",
                   .set = [policy](const std::string& text) -> std::string {
                     const size_t equals = text.find('=');
                     std::string name = text.substr(0, equals);
                     std::ranges::replace(name, '-', '_');
                     const auto value = equals == std::string::npos
                                            ? std::nullopt
                                            : parse<double>(std::string_view(text).substr(equals + 1));
                     if (!value || name.empty()) return "NAME=VALUE with a number is expected";
                     if (!policy->by_pair.emplace(name, *value).second) return name + " is given twice";
                     return "";
                   },
                   .get =
                       [policy] {
                         std::vector<std::string> pairs;
                         for (const auto& [name, value] : policy->by_pair) {
                           pairs.push_back(fmt::format("{}={}", name, value));
                         }
                         return pairs;
                       },
                   .clear = [policy] { policy->by_pair.clear(); }});
}

void declare_parameter(OptionSet* options, PolicyOptions* policy, const SharedParameter& shared) {
  const policy::Parameter& first = shared.of(*shared.learners.front());
  options->custom({.name = shared.option,
                   .hint = std::string(first.hint),
                   .help = fmt::format("{}: {}", names_of(shared.learners), first.help),
                   .range = values_of(shared),
                   .belongs_to = "policy",
                   .set = [policy, shared](const std::string& text) -> std::string {
                     const auto value = parse<double>(text);
                     const bool good =
                         value && std::ranges::any_of(shared.learners, [&](const auto* learner) {
                           return policy::accepts(shared.of(*learner), *value);
                         });
                     if (!good)
                       return policy::expected_values(shared.of(*shared.learners.front())) + " is expected";
                     policy->by_flag[shared.name] = *value;
                     return "";
                   },
                   // When not given, the default, if the chosen policy has the parameter.
                   .get = [policy, shared]() -> std::vector<std::string> {
                     if (policy->by_pair.contains(shared.name) && !policy->by_flag.contains(shared.name))
                       return {};
                     const policy::Learner* learner = policy::find_learner(policy->name);
                     const auto given = policy->by_flag.find(shared.name);
                     if (given != policy->by_flag.end()) return {fmt::format("{}", given->second)};
                     if (learner == nullptr || learner->find(shared.name) == nullptr) return {};
                     return {fmt::format("{}", shared.of(*learner).initial)};
                   }});
}

}  // namespace

void declare_bounds_option(OptionSet* options, std::string* bounds) {
  options->text(
      "bounds", bounds, "LAYERS:RANGE,…",
      "least and most samples of layers, kept by every schedule that is tried or recommended: 3:4 pins layer 3, "
      "5-9:2-12 holds layers 5 to 9 between 2 and 12, 2- or -8 leaves an end out, and 0-1:exact gives layers 0 and "
      "1 exact attention, which is not in the total");
}

void declare_policy_options(OptionSet* options, PolicyOptions* policy) {
  std::string help = "the learner";
  for (const policy::Learner* learner : policy::learners()) {
    help += fmt::format("; {}: {}", learner->name, learner->summary);
  }
  options->choice("policy", &policy->name, policy::policy_names(), help.c_str());
  declare_bounds_option(options, &policy->bounds);
  options->text(
      "start", &policy->start, "SCHEDULE",
      "schedule that learning starts from, such as one that allot calibrate wrote: a schedule.json of "
      "the same attention and total, a,b,c,… or uniform:N; the even one when not given");
  declare_max_policy_lag(options, policy);
  declare_policy_option(options, policy);
  for (const SharedParameter& shared : shared_parameters()) declare_parameter(options, policy, shared);
}

std::vector<std::string> policy_faults(const PolicyOptions& policy) {
  std::vector<std::string> faults;
  const policy::Learner* learner = policy::find_learner(policy.name);
  if (learner == nullptr) return faults;  // --policy refuses it
  std::vector<std::string> options;
  for (const policy::Parameter& declared : learner->parameters) {
    options.push_back("--" + policy::option_name(declared));
  }
  const auto check = [&](const std::string& shown, const std::string& name, double value) {
    const policy::Parameter* declared = learner->find(name);
    if (declared == nullptr) {
      faults.push_back(fmt::format("{} is no parameter of --policy {}, which has {}", shown, policy.name,
                                   options.empty() ? "none" : fmt::format("{}", fmt::join(options, ", "))));
    } else if (!policy::accepts(*declared, value)) {
      faults.push_back(fmt::format("{} has the value {}; {} is expected", shown, value,
                                   policy::expected_values(*declared)));
    }
  };
  for (const auto& [name, value] : policy.by_flag) {
    std::string option = name;
    std::ranges::replace(option, '_', '-');
    check("--" + option, name, value);
    if (policy.by_pair.contains(name)) {
      faults.push_back(fmt::format("--{} and --policy-option {} are both given", option, name));
    }
  }
  for (const auto& [name, value] : policy.by_pair) check("--policy-option " + name, name, value);
  return faults;
}

policy::PolicyConfig policy_config(const PolicyOptions& policy) {
  policy::PolicyConfig config{.name = policy.name,
                              .total = policy.total,
                              .floor = policy.floor,
                              .max_policy_lag = lag_of(policy),
                              .bounds = policy::parse_bounds(policy.bounds),
                              .parameters = policy.by_flag};
  config.parameters.insert(policy.by_pair.begin(), policy.by_pair.end());
  return config;
}

}  // namespace allot::app
