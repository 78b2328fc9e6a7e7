#include "app/run/resume.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "aggregator/run_data.h"
#include "aggregator/run_directory.h"
#include "aggregator/run_spec.h"
#include "app/run/identity.h"
#include "app/run/user_name.h"
#include "base/error.h"
#include "base/log.h"
#include "episode/reward_kind.h"
#include "evaluation/task.h"
#include "wire/messages.pb.h"
#include "wire/spec.h"
#include "worker/spec_conditions.h"

namespace allot::app {
namespace {

// What the given options say against the run.
class Comparison {
 public:
  Comparison(const OptionSet& set, const RunOptions& given, const wire::RunSpec& spec)
      : set_(set),
        given_(given),
        spec_(spec),
        stored_(options_of_run(spec_, given.run)),
        stored_set_("", "", "") {
    // The help, which nobody asks for here, names the usual values of the task that is the default.
    const std::string task = std::exchange(stored_.task, RunOptions().task);
    declare_run_options(stored_set_, &stored_);
    stored_.task = task;
  }

  Changes changes() {
    for (const std::string& option : stored_set_.names()) {
      if (!set_.given(option.c_str()) || option == "run") continue;
      const auto special = kSpecial.find(option);
      if (special != kSpecial.end()) {
        std::invoke(special->second, this);
      } else {
        compare(option);
      }
    }
    if (!faults_.empty()) {
      throw Mismatch(fmt::format(
          "run directory {} holds a run of another spec: {}; leave the options out, or choose another directory",
          given_.run.string(), fmt::join(faults_, "; ")));
    }
    return std::move(changes_);
  }

 private:
  using Compare = void (Comparison::*)();

  void differs(const std::string& option, const std::string& run_has) {
    faults_.push_back(
        fmt::format("--{} {}, but the run has {}", option, set_.value(option.c_str()), run_has));
  }
  void differs(const std::string& option, const std::vector<std::string>& lines) {
    if (!lines.empty())
      faults_.push_back(fmt::format("--{} {} is not the run's ({})", option, set_.value(option.c_str()),
                                    fmt::join(lines, ", ")));
  }

  void compare(const std::string& option) {
    const std::string value = set_.value(option.c_str()), run_has = stored_set_.value(option.c_str());
    if (value == run_has || value == "auto") return;  // auto: the run has chosen
    differs(option, run_has.empty() ? "none" : run_has);
  }

  void compare_model() {
    auto model = to_wire(model::identify_model(given_.model, {.adapter = given_.adapter}));
    if (!spec_.model().weights_sha256().empty())
      model.set_weights_sha256(model::whole_weights_sha256(given_.model));
    differs("model", wire::differences(spec_.model(), model));
  }

  void compare_adapter() {
    if (!spec_.model().has_adapter()) return differs("adapter", "none");
    if (!given_.model.empty()) return;  // compared with the model
    const auto model = to_wire(model::identify_model(spec_.model_path(), {.adapter = given_.adapter}));
    if (model.adapter().fingerprint() != spec_.model().adapter().fingerprint())
      differs("adapter",
              std::vector{fmt::format("adapter.fingerprint: '{}' != '{}'",
                                      spec_.model().adapter().fingerprint(), model.adapter().fingerprint())});
  }

  void compare_data(const std::string& option, const std::filesystem::path& file,
                    const wire::DatasetIdentity& stored) {
    const auto task = evaluation::make_task(worker::task_source(spec_.task()));
    differs(option, wire::differences(stored, to_wire(task->load(file, worker::field_names(stored)))));
  }
  void compare_train() { compare_data("data", given_.data, spec_.task().train()); }
  void compare_heldout() {
    if (spec_.task().heldout_questions() > 0)
      return compare_data("heldout", given_.heldout, spec_.task().heldout());
    if (given_.heldout_questions.value_or(1) > 0) differs("heldout", "no verification");
  }

  void compare_task() {
    const std::string definition = evaluation::read_task_definition(given_.task);
    const bool same = definition.empty()
                          ? !spec_.task().has_definition() && given_.task == spec_.task().name()
                          : definition == spec_.task().definition();
    if (!same) differs("task", spec_.task().has_definition() ? "another task file" : spec_.task().name());
  }

  void compare_start() {
    if (start_of(given_.policy.start, spec_).to_string() != spec_.policy().start())
      differs("start", spec_.policy().start().empty() ? "the even schedule" : spec_.policy().start());
  }

  void compare_policy_options() {
    for (const auto& [parameter, value] : given_.policy.by_pair) {
      const auto stored = stored_.policy.by_flag.find(parameter);
      if (stored != stored_.policy.by_flag.end() && stored->second == value) continue;
      faults_.push_back(
          fmt::format("--policy-option {}={}, but the run has {}", parameter, value,
                      stored == stored_.policy.by_flag.end() ? "none" : fmt::format("{}", stored->second)));
    }
  }

  // Only a run that settles has it.
  void compare_most_episodes() {
    if (spec_.until_settled()) compare("most-episodes");
  }

  // What an operator may change. `now` is what the run is at.
  template <class Value>
  void change(const char* option, const Value& value, const Value& began, const Value& now,
              const std::function<void(wire::Control*)>& fill) {
    if (value == now) return;
    if (value == began) {
      spdlog::warn(
          "--{0} {1} is what the run began with, and an operator has changed it to {2} since, which stays; "
          "allot control {0} {1} --run {3} changes it back",
          option, value, now, given_.run.string());
      return;
    }
    wire::Control& control = changes_.controls.emplace_back();
    control.set_by(user_and_host());
    fill(&control);
    changes_.words.insert(changes_.words.end(), {fmt::format("--{}", option), fmt::format("{}", value)});
  }

  // Read only where an option may differ from it.
  const aggregator::RunData& now() {
    if (now_) return *now_;
    now_ = aggregator::read_settings(given_.run);
    return *now_;
  }

  void change_episodes() {
    // A run that learns until it settles may have had its divergences on top of the episodes that were given.
    const bool as_given =
        spec_.until_settled() && given_.episodes + spec_.divergence_episodes() == spec_.episodes();
    change("episodes", as_given ? spec_.episodes() : given_.episodes, spec_.episodes(), now().episodes_wanted,
           [&](wire::Control* control) {
             control->set_action(wire::Control::ACTION_EPISODES);
             control->set_episodes(given_.episodes);
           });
  }
  void change_bounds() {
    const std::string bounds = policy::parse_bounds(given_.policy.bounds).to_string();
    change("bounds", bounds, spec_.policy().bounds(), now().bounds, [&](wire::Control* control) {
      control->set_action(wire::Control::ACTION_BOUNDS);
      control->set_bounds(bounds);
    });
  }
  void change_lease_seconds() {
    change("lease-seconds", given_.lease_seconds, spec_.lease_ms() / 1000, now().lease_ms / 1000,
           [&](wire::Control* control) {
             control->set_action(wire::Control::ACTION_LEASE_SECONDS);
             control->set_lease_seconds(given_.lease_seconds);
           });
  }
  void change_max_attempts() {
    change("max-attempts", given_.max_attempts, spec_.max_attempts(), now().max_attempts,
           [&](wire::Control* control) {
             control->set_action(wire::Control::ACTION_MAX_ATTEMPTS);
             control->set_max_attempts(given_.max_attempts);
           });
  }

  void change_heldout_questions() {
    const auto began = static_cast<int32_t>(spec_.task().heldout_questions());
    if (began == 0) {
      if (given_.heldout_questions != 0) differs("heldout-questions", "0");
      return;
    }
    change("heldout-questions", *given_.heldout_questions, began,
           static_cast<int32_t>(now().spec.task().heldout_questions()), [&](wire::Control* control) {
             control->set_action(wire::Control::ACTION_HELDOUT_QUESTIONS);
             control->set_heldout_questions(*given_.heldout_questions);
           });
  }

  static const std::map<std::string, Compare, std::less<>> kSpecial;

  const OptionSet& set_;
  const RunOptions& given_;
  const wire::RunSpec& spec_;
  RunOptions stored_;
  OptionSet stored_set_;
  std::optional<aggregator::RunData> now_;
  std::vector<std::string> faults_;
  Changes changes_;
};

const std::map<std::string, Comparison::Compare, std::less<>> Comparison::kSpecial = {
    {"model", &Comparison::compare_model},
    {"adapter", &Comparison::compare_adapter},
    {"data", &Comparison::compare_train},
    {"heldout", &Comparison::compare_heldout},
    {"task", &Comparison::compare_task},
    {"start", &Comparison::compare_start},
    {"policy-option", &Comparison::compare_policy_options},
    {"most-episodes", &Comparison::compare_most_episodes},
    {"episodes", &Comparison::change_episodes},
    {"bounds", &Comparison::change_bounds},
    {"lease-seconds", &Comparison::change_lease_seconds},
    {"heldout-questions", &Comparison::change_heldout_questions},
    {"max-attempts", &Comparison::change_max_attempts},
};

}  // namespace

bool holds_run(const std::filesystem::path& run_directory) {
  return std::filesystem::exists(aggregator::spec_path(run_directory));
}

RunOptions options_of_run(const wire::RunSpec& spec, const std::filesystem::path& run_directory) {
  const evaluation::Conditions conditions = worker::conditions_of(spec);
  const policy::PolicyConfig config = aggregator::policy_config(spec);
  const wire::TaskSpec& task = spec.task();
  RunOptions run;
  run.run = run_directory;
  run.model = spec.model_path();
  if (spec.model().has_adapter()) run.adapter = spec.model().adapter().path();
  run.whole_weights = !spec.model().weights_sha256().empty();
  run.data = task.train().path();
  run.heldout = task.heldout().path();
  run.fields = worker::field_names(task.train());
  run.task = task.has_definition() ? aggregator::task_path(run_directory).string() : task.name();
  run.policy.name = config.name;
  run.policy.total = config.total;
  run.policy.floor = config.floor;
  run.policy.bounds = spec.policy().bounds();
  run.policy.max_policy_lag = config.max_policy_lag;
  run.policy.start = spec.policy().start();
  run.policy.by_flag = config.parameters;
  run.attention = conditions.attention;
  kernels::keep_own_parameters(&run.attention, kernels::usual_parameters());
  run.until = spec.until_settled() ? "settled" : "episodes";
  if (spec.until_settled()) run.most_episodes = spec.most_episodes();
  run.questions = static_cast<int32_t>(spec.questions_per_episode());
  if (spec.divergence_questions() > 0)
    run.divergence_questions = static_cast<int32_t>(spec.divergence_questions());
  run.preflight = static_cast<int32_t>(spec.preflight_questions());
  run.ignore_preflight = spec.ignore_preflight();
  // Rounded, so that the points that were given come back from the share that is kept.
  run.gain_floor = std::round(1e12 * 100 * spec.gain_floor()) / 1e12;
  run.price_per_hour = spec.price_per_hour();
  run.cross_check = spec.cross_check();
  run.seed = spec.seed();
  run.lease_seconds = spec.lease_ms() / 1000;
  run.max_attempts = spec.max_attempts();
  resolve(spec, &run);
  return run;
}

Changes resume_run(const OptionSet& set, const RunOptions& given, wire::RunSpec* spec) {
  *spec = wire::read_spec(aggregator::spec_path(given.run));
  aggregator::require_learner(*spec, given.run);
  RunOptions usual;
  OptionSet of_a_run("", "", "");
  declare_run_options(of_a_run, &usual);
  // A run that nothing is said of need not be one that options could have made.
  if (std::ranges::none_of(of_a_run.names(),
                           [&](const std::string& name) { return name != "run" && set.given(name.c_str()); }))
    return {};
  return Comparison(set, given, *spec).changes();
}

}  // namespace allot::app
