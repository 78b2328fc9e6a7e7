#include "aggregator/run_spec.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace allot::aggregator {

void validate(const wire::RunSpec& spec) {
  std::string faults;
  const auto expect = [&](bool holds, const char* field, auto value, const std::string& expected) {
    if (holds) return;
    if (!faults.empty()) faults += "; ";
    faults += fmt::format("{} is {}, expected {}", field, value, expected);
  };
  const wire::TaskSpec& task = spec.task();
  expect(spec.schema_version() == kSpecVersion, "schema_version", spec.schema_version(),
         std::to_string(kSpecVersion));
  expect(spec.model().layers() >= 1, "model.layers", spec.model().layers(), "at least 1");
  expect(spec.episodes() >= 1, "episodes", spec.episodes(), "at least 1");
  expect(spec.questions_per_episode() >= 1 && spec.questions_per_episode() <= task.train().questions(),
         "questions_per_episode", spec.questions_per_episode(),
         fmt::format("1 to the {} questions of the training file", task.train().questions()));
  expect(task.heldout_questions() <= task.heldout().questions(), "task.heldout_questions",
         task.heldout_questions(),
         fmt::format("at most the {} questions of the held-out file", task.heldout().questions()));
  expect(spec.lease_ms() >= 1, "lease_ms", spec.lease_ms(), "at least 1");
  expect(spec.max_attempts() >= 1, "max_attempts", spec.max_attempts(), "at least 1");
  if (!faults.empty()) throw InvalidArgument("the run cannot be started: " + faults);
  policy::validate(policy_config(spec));
}

policy::PolicyConfig policy_config(const wire::RunSpec& spec) {
  const wire::PolicySpec& from = spec.policy();
  policy::PolicyConfig config;
  config.name = from.name();
  config.layers = spec.model().layers();
  config.total = from.total();
  config.floor = from.floor();
  config.seed = spec.seed();
  config.max_policy_lag = from.max_policy_lag();
  config.learning_rate = from.learning_rate();
  config.episodes_per_update = from.episodes_per_update();
  config.pairs_per_update = from.pairs_per_update();
  config.perturbation = from.perturbation();
  config.gain = from.gain();
  config.gain_offset = from.gain_offset();
  config.gain_decay = from.gain_decay();
  config.perturbation_decay = from.perturbation_decay();
  return config;
}

wire::PolicySpec policy_spec(const policy::PolicyConfig& config) {
  wire::PolicySpec spec;
  spec.set_name(config.name);
  spec.set_total(config.total);
  spec.set_floor(config.floor);
  spec.set_max_policy_lag(config.max_policy_lag);
  spec.set_learning_rate(config.learning_rate);
  spec.set_episodes_per_update(config.episodes_per_update);
  spec.set_pairs_per_update(config.pairs_per_update);
  spec.set_perturbation(config.perturbation);
  spec.set_gain(config.gain);
  spec.set_gain_offset(config.gain_offset);
  spec.set_gain_decay(config.gain_decay);
  spec.set_perturbation_decay(config.perturbation_decay);
  return spec;
}

policy::Schedule even_schedule(const wire::RunSpec& spec) {
  const std::vector<double> equal(static_cast<size_t>(spec.model().layers()), 1.0);
  return policy::apportion(equal, spec.policy().total(), spec.policy().floor());
}

void describe_run(const wire::RunSpec& spec, wire::Status* status) {
  status->set_run_id(spec.run_id());
  status->set_model(spec.model().id());
  status->set_task(spec.task().name());
  status->set_estimator(spec.attention().estimator());
  status->set_total_samples(spec.policy().total());
  status->set_lease_ms(spec.lease_ms());
}

int64_t verification_episodes(const wire::RunSpec& spec) {
  const int64_t questions = spec.task().heldout_questions(), batch = spec.questions_per_episode();
  return kVerifiedSchedules * ((questions + batch - 1) / batch);
}

}  // namespace allot::aggregator
