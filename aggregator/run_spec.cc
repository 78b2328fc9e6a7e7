#include "aggregator/run_spec.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.pb.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "aggregator/outlook.h"
#include "base/error.h"
#include "episode/reward_kind.h"
#include "policy/exact_layers.h"
#include "policy/learner.h"
#include "wire/messages.pb.h"
#include "wire/spec.h"

namespace allot::aggregator {
namespace {

// The field in which the previous release kept this parameter; null when there is none. Such fields have the
// parameters' names and are marked as deprecated.
const google::protobuf::FieldDescriptor* old_field(std::string_view parameter) {
  const auto* field = wire::PolicySpec::descriptor()->FindFieldByName(std::string(parameter));
  return field != nullptr && field->options().deprecated() ? field : nullptr;
}

void set_old_field(wire::PolicySpec* spec, const policy::Parameter& parameter, double value) {
  const auto* field = old_field(parameter.name);
  if (field == nullptr) return;
  if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_INT32) {
    wire::PolicySpec::GetReflection()->SetInt32(spec, field, static_cast<int32_t>(value));
  } else {
    wire::PolicySpec::GetReflection()->SetDouble(spec, field, value);
  }
}

double get_old_field(const wire::PolicySpec& spec, const google::protobuf::FieldDescriptor& field) {
  const auto& reflection = *wire::PolicySpec::GetReflection();
  return field.cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_INT32
             ? reflection.GetInt32(spec, &field)
             : reflection.GetDouble(spec, &field);
}

// The parameters that the spec names, and those of its learner that it has only as a field.
std::map<std::string, double> parameters_of(const wire::PolicySpec& spec) {
  std::map<std::string, double> parameters(spec.parameters().begin(), spec.parameters().end());
  const policy::Learner* learner = policy::find_learner(spec.name());
  if (learner == nullptr) return parameters;
  for (const policy::Parameter& declared : learner->parameters) {
    const std::string name(declared.name);
    const auto* field = old_field(name);
    if (field != nullptr && !parameters.contains(name)) parameters[name] = get_old_field(spec, *field);
  }
  return parameters;
}

// The policy of a run that learns nothing.
class NoLearner final : public policy::Policy {
 public:
  std::vector<policy::Proposal> ask(int /*count*/) override {
    throw std::logic_error("a run that evaluates has no proposals");
  }
  policy::TellResult tell(const policy::Outcome& /*outcome*/) override {
    return policy::TellResult::kUnknown;
  }
  void give_up(int64_t /*number*/) override {}
  void bound(const policy::Bounds& /*bounds*/) override {
    throw InvalidArgument("a run that evaluates takes no bounds: its schedules are given");
  }
  policy::Schedule recommend() const override { return {}; }
  policy::Description describe() const override { return {}; }
  int64_t version() const override { return 0; }
  std::string save() const override { return ""; }
};

// What a run that evaluates has besides what every run has.
template <class Expect>
void validate_evaluation(const wire::RunSpec& spec, const Expect& expect) {
  const std::string& device = spec.evaluation().device();
  expect(device == "cpu" || device == "cuda", "evaluation.device", device, "cpu or cuda");
  expect(spec.episodes() == 0, "episodes", spec.episodes(), "0 in a run that evaluates");
  expect(spec.task().heldout_questions() == 0, "task.heldout_questions", spec.task().heldout_questions(),
         "0 in a run that evaluates");
  expect(spec.preflight_questions() == 0, "preflight_questions", spec.preflight_questions(),
         "0 in a run that evaluates");
  expect(spec.cross_check() == 0, "cross_check", spec.cross_check(), "0 in a run that evaluates");
  expect(spec.reward_kind().empty(), "reward_kind", spec.reward_kind(), "none in a run that evaluates");
  expect(spec.divergence_episodes() == 0, "divergence_episodes", spec.divergence_episodes(),
         "0 in a run that evaluates");
  expect(!spec.has_policy(), "policy", spec.policy().name(), "none in a run that evaluates");
  for (const wire::EvaluationTask& one : spec.evaluation().more()) {
    const uint32_t questions = one.task().train().questions();
    expect(one.questions_per_episode() >= 1 && one.questions_per_episode() <= questions,
           "evaluation.more.questions_per_episode", one.questions_per_episode(),
           fmt::format("1 to the {} questions of the training file", questions));
    expect(one.task().heldout_questions() == 0, "evaluation.more.task.heldout_questions",
           one.task().heldout_questions(), "0 in a run that evaluates");
    expect(one.generation().dtype() == spec.generation().dtype(), "evaluation.more.generation.dtype",
           one.generation().dtype(), fmt::format("{}, that of the spec", spec.generation().dtype()));
    expect(one.generation().weights() == spec.generation().weights(), "evaluation.more.generation.weights",
           one.generation().weights(), fmt::format("\"{}\", that of the spec", spec.generation().weights()));
    expect(one.generation().keys() == spec.generation().keys(), "evaluation.more.generation.keys",
           one.generation().keys(), fmt::format("\"{}\", that of the spec", spec.generation().keys()));
  }
}

}  // namespace

void validate(const wire::RunSpec& spec) {
  std::string faults;
  const auto expect = [&](bool holds, const char* field, auto value, const std::string& expected) {
    if (holds) return;
    if (!faults.empty()) faults += "; ";
    faults += fmt::format("{} is {}, expected {}", field, value, expected);
  };
  const wire::TaskSpec& task = spec.task();
  expect(spec.schema_version() == wire::kSpecVersion, "schema_version", spec.schema_version(),
         std::to_string(wire::kSpecVersion));
  expect(spec.model().layers() >= 1, "model.layers", spec.model().layers(), "at least 1");
  const bool learns = !spec.has_evaluation();
  if (learns)
    expect(spec.episodes() >= 1, "episodes", spec.episodes(), "at least 1");
  else
    validate_evaluation(spec, expect);
  expect(spec.questions_per_episode() >= 1 && spec.questions_per_episode() <= task.train().questions(),
         "questions_per_episode", spec.questions_per_episode(),
         fmt::format("1 to the {} questions of the training file", task.train().questions()));
  expect(task.heldout_questions() <= task.heldout().questions(), "task.heldout_questions",
         task.heldout_questions(),
         fmt::format("at most the {} questions of the held-out file", task.heldout().questions()));
  expect(spec.lease_ms() >= 1, "lease_ms", spec.lease_ms(), "at least 1");
  expect(spec.max_attempts() >= 1, "max_attempts", spec.max_attempts(), "at least 1");
  expect(spec.divergence_episodes() >= 0 && spec.divergence_episodes() <= spec.episodes(),
         "divergence_episodes", spec.divergence_episodes(),
         fmt::format("0 to the {} episodes of the run", spec.episodes()));
  expect(spec.divergence_questions() <= task.train().questions(), "divergence_questions",
         spec.divergence_questions(),
         fmt::format("at most the {} questions of the training file", task.train().questions()));
  expect(spec.most_episodes() >= 0, "most_episodes", spec.most_episodes(), "at least 0");
  expect(spec.gain_floor() >= 0 && spec.gain_floor() <= 1, "gain_floor", spec.gain_floor(), "0 to 1");
  expect(spec.cross_check() >= 0 && spec.cross_check() <= 1, "cross_check", spec.cross_check(), "0 to 1");
  expect(spec.price_per_hour() >= 0, "price_per_hour", spec.price_per_hour(), "at least 0");
  try {
    (void)parse_reward_kind(spec.reward_kind());
  } catch (const InvalidArgument& error) {
    faults += (faults.empty() ? "" : "; ") + std::string(error.what());
  }
  if (!faults.empty()) throw InvalidArgument("the run cannot be started: " + faults);
  if (!learns) return;
  policy::validate(policy_config(spec));
  const policy::Learner& learner = *policy::find_learner(spec.policy().name());
  if (spec.divergence_episodes() > 0 && !learner.mixes_kinds) {
    std::string others;
    for (const policy::Learner* other : policy::learners())
      if (other->mixes_kinds) others += fmt::format("{}{}", others.empty() ? "" : " or ", other->name);
    throw InvalidArgument(
        fmt::format("the run cannot be started: policy {} compares rewards of all its episodes and learns "
                    "from one kind only, but the first {} are divergences; use policy {}, or one kind for "
                    "all episodes",
                    learner.name, spec.divergence_episodes(), others));
  }
}

int64_t divergence_episodes(const wire::RunSpec& spec) {
  return parse_reward_kind(spec.reward_kind()) == RewardKind::kDivergence ? spec.episodes()
                                                                          : spec.divergence_episodes();
}

std::vector<uint32_t> questions_per_episode(const wire::RunSpec& spec) {
  std::vector<uint32_t> of_tasks = {spec.questions_per_episode()};
  for (const wire::EvaluationTask& one : spec.evaluation().more())
    of_tasks.push_back(one.questions_per_episode());
  return of_tasks;
}

uint32_t questions_of_divergence(const wire::RunSpec& spec) {
  return spec.divergence_questions() > 0 ? spec.divergence_questions() : spec.questions_per_episode();
}

policy::PolicyConfig policy_config(const wire::RunSpec& spec) {
  const wire::PolicySpec& from = spec.policy();
  policy::PolicyConfig config;
  config.name = from.name();
  config.layers = spec.model().layers();
  config.total = from.total();
  config.floor = from.floor();
  config.bounds = policy::parse_bounds(from.bounds());
  config.seed = spec.seed();
  config.max_policy_lag = from.max_policy_lag();
  if (!from.start().empty()) config.start = policy::parse_schedule(from.start());
  config.reward_kind = parse_reward_kind(spec.reward_kind());
  config.divergence_episodes = divergence_episodes(spec);
  config.parameters = parameters_of(from);
  return config;
}

wire::PolicySpec policy_spec(const policy::PolicyConfig& config) {
  wire::PolicySpec spec;
  spec.set_name(config.name);
  spec.set_total(config.total);
  spec.set_floor(config.floor);
  spec.set_bounds(config.bounds.to_string());
  spec.set_max_policy_lag(config.max_policy_lag);
  spec.set_start(config.start.to_string());
  // The previous release reads the fields of every learner and refuses values out of range.
  for (const policy::Learner* learner : policy::learners()) {
    for (const policy::Parameter& declared : learner->parameters) {
      set_old_field(&spec, declared, declared.initial);
    }
  }
  // A name that is not declared is kept, so that validate() can report it.
  spec.mutable_parameters()->insert(config.parameters.begin(), config.parameters.end());
  const policy::Learner* learner = policy::find_learner(config.name);
  if (learner == nullptr) return spec;
  for (const policy::Parameter& declared : learner->parameters) {
    const double value = policy::parameter(config, declared.name);
    if (declared.later && value == declared.initial) {
      spec.mutable_parameters()->erase(std::string(declared.name));
      continue;
    }
    (*spec.mutable_parameters())[std::string(declared.name)] = value;
    set_old_field(&spec, declared, value);
  }
  return spec;
}

std::unique_ptr<policy::Policy> make_learner(const wire::RunSpec& spec) {
  if (spec.has_evaluation()) return std::make_unique<NoLearner>();
  return policy::make_policy(policy_config(spec));
}

void require_learner(const wire::RunSpec& spec, const std::filesystem::path& place) {
  if (!spec.has_evaluation()) return;
  throw Mismatch(fmt::format(
      "{} holds an evaluation, which learns nothing; its answers are in replies.jsonl, and the command that began "
      "it shows them and goes on",
      place.string()));
}

policy::Schedule even_schedule(const wire::RunSpec& spec) {
  if (spec.has_evaluation()) return {};
  const policy::PolicyConfig config = policy_config(spec), part = policy::sampled_part(config);
  return policy::with_exact_layers(config, policy::even_schedule(part.layers, part.total, part.floor));
}

void describe_run(const wire::RunSpec& spec, wire::Status* status) {
  status->set_run_id(spec.run_id());
  status->set_model(spec.model().id());
  status->set_task(spec.task().name());
  status->set_estimator(spec.attention().estimator());
  status->set_unit(spec.attention().unit());
  status->set_total_samples(spec.policy().total());
  status->set_lease_ms(spec.lease_ms());
  status->set_reward_kind(spec.reward_kind());
  status->set_gain_floor(spec.gain_floor());
}

void describe_policy(const policy::Description& described, wire::Status* status) {
  status->set_layer_name(described.layer_name);
  status->mutable_shares()->Add(described.per_layer.begin(), described.per_layer.end());
  for (const auto& scalar : described.scalars) {
    wire::NamedNumber& number = *status->add_policy_numbers();
    number.set_name(scalar.name);
    number.set_value(scalar.value);
  }
  if (const double* entropy = described.find("entropy")) status->set_entropy(*entropy);
  if (const auto outlook = outlook_of(described)) {
    status->mutable_outlook()->set_gain(outlook->over_even.mean);
    status->mutable_outlook()->set_low(outlook->over_even.low);
    status->mutable_outlook()->set_high(outlook->over_even.high);
    status->mutable_outlook()->set_left_to_gain(outlook->left_to_gain);
  }
}

namespace {

int64_t batches(int64_t questions, const wire::RunSpec& spec) {
  const int64_t batch = spec.questions_per_episode();
  return (questions + batch - 1) / batch;
}

}  // namespace

int64_t verification_episodes(const wire::RunSpec& spec) {
  return kVerifiedSchedules * batches(spec.task().heldout_questions(), spec);
}

int64_t preflight_questions(const wire::RunSpec& spec) {
  return std::min(spec.preflight_questions(), spec.task().train().questions());
}

int64_t preflight_episodes(const wire::RunSpec& spec) {
  return kPreflightSchedules * batches(preflight_questions(spec), spec);
}

}  // namespace allot::aggregator
