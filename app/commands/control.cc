// allot control: pauses, resumes or stops a running run, changes its number of episodes, the bounds of its
// schedules, its held-out questions, or how long and how often episodes are leased, or cordons one worker.
// The run's history records who asked for it and when.
#include <charconv>
#include <chrono>
#include <iostream>
#include <map>
#include <optional>
#include <string>

#include "app/cli/as_usage.h"
#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/run/key_options.h"
#include "app/run/run_directory.h"
#include "app/run/user_name.h"
#include "base/error.h"
#include "policy/bounds.h"
#include "wire/control_query.h"
#include "wire/messages.pb.h"

namespace allot::app {
namespace {

constexpr const char* kExample = "allot control pause --run runs/cluster";
constexpr Duration kControlTimeout = std::chrono::seconds(10);

struct ControlOptions {
  std::string action;
  std::string value;  // of the actions that have one, as given
  std::filesystem::path run;
  std::string connect;
  KeyOptions keys;
  std::string name;
  double at_reward = 0;
};

// The actions with a number. Each is also an option, --episodes N.
constexpr const char* kNumbered[] = {"episodes", "heldout-questions", "lease-seconds", "max-attempts"};

int64_t number_of(const ControlOptions& options, int64_t most) {
  int64_t number = 0;
  const char* end = options.value.data() + options.value.size();
  const auto [next, error] = std::from_chars(options.value.data(), end, number);
  if (error != std::errc{} || next != end || number < 1 || number > most)
    throw UsageError(options.action + " needs a number from 1 to " + std::to_string(most) + ", not '" +
                     options.value + "'");
  return number;
}

wire::Control control_of(const ControlOptions& options, bool with_target) {
  using wire::Control;
  constexpr int64_t kMost = 1'000'000;
  Control control;
  control.set_by(options.name.empty() ? user_and_host() : options.name);
  const std::string& action = options.action;
  if (action == "episodes") {
    control.set_action(Control::ACTION_EPISODES);
    control.set_episodes(number_of(options, 1000 * kMost));
  } else if (action == "heldout-questions") {
    control.set_action(Control::ACTION_HELDOUT_QUESTIONS);
    control.set_heldout_questions(number_of(options, 1000 * kMost));
  } else if (action == "lease-seconds") {
    control.set_action(Control::ACTION_LEASE_SECONDS);
    control.set_lease_seconds(number_of(options, kMost));
  } else if (action == "max-attempts") {
    control.set_action(Control::ACTION_MAX_ATTEMPTS);
    control.set_max_attempts(static_cast<int32_t>(number_of(options, kMost)));
  } else if (action == "bounds") {
    if (options.value.empty()) throw UsageError("bounds needs LAYERS:RANGE,…, as in 3:4,5-9:2-12, or none");
    control.set_action(Control::ACTION_BOUNDS);
    if (options.value != "none") control.set_bounds(policy::parse_bounds(options.value).to_string());
  } else if (action == "cordon" || action == "uncordon") {
    if (options.value.empty())
      throw UsageError(action +
                       " needs the name of a worker, or of the holder of a key, as allot status shows them");
    control.set_action(action == "cordon" ? Control::ACTION_CORDON : Control::ACTION_UNCORDON);
    control.set_worker(options.value);
  } else if (!options.value.empty()) {
    throw UsageError("'" + options.value + "' is not expected after " + action);
  } else if (action == "pause") {
    control.set_action(Control::ACTION_PAUSE);
  } else if (action == "resume") {
    control.set_action(Control::ACTION_RESUME);
  } else {
    control.set_action(with_target ? Control::ACTION_TARGET : Control::ACTION_STOP);
    control.set_reward(options.at_reward);
  }
  if (with_target && action != "stop") throw UsageError("--at-reward belongs to stop");
  return control;
}

std::string endpoint_of(const ControlOptions& options) {
  if (!options.connect.empty()) return options.connect;
  if (const auto endpoint = read_endpoint(options.run)) return *endpoint;
  throw NotFound("no aggregator serves " + options.run.string() +
                 " (it has no file 'endpoint'); start one with allot aggregator --run " +
                 options.run.string() + ", then control the run");
}

// An action that was given as an option.
void take_numbered(const OptionSet& set, const std::map<std::string, std::optional<int64_t>>& numbers,
                   ControlOptions* options) {
  for (const char* action : kNumbered) {
    if (!set.given(action)) continue;
    if (!options->action.empty())
      throw UsageError("--" + std::string(action) + " and " + options->action + " are two actions; give one");
    options->action = action;
    options->value = std::to_string(*numbers.at(action));
  }
}

}  // namespace

int run_control(std::span<const std::string> arguments) {
  ControlOptions options;
  OptionSet set(
      "control",
      "pause, resume or stop a run, change its episodes, bounds, held-out questions or leases, or cordon a worker",
      kExample);
  set.positional_choice(
      "action", &options.action,
      {"pause", "resume", "stop", "episodes", "bounds", "heldout-questions", "lease-seconds", "max-attempts",
       "cordon", "uncordon"},
      "ACTION",
      "pause (running episodes are finished), resume, stop (learn from them, then verify), episodes (a run that is "
      "verified or finished learns on, and is verified again), bounds, heldout-questions (a finished run is verified on "
      "those that it has not had), lease-seconds, max-attempts, cordon (a worker gets no leases; those that it holds "
      "run on), or uncordon (it gets leases again)");
  set.positional(
      "value", &options.value, "VALUE",
      "after 'episodes': learning episodes wanted from now on; after 'bounds': what schedules keep "
      "from now on, as --bounds of allot tune, or none; after 'heldout-questions': how many the run is verified on; after 'lease-seconds': how long a lease runs that is granted or "
      "renewed from now on; after 'max-attempts': attempts at one episode before it is given up; after 'cordon' and "
      "'uncordon': the name of a worker, or the holder of a key for all of its workers");
  std::map<std::string, std::optional<int64_t>> numbers;
  for (const char* action : kNumbered)
    set.integer(action, &numbers[action], 1, 1'000'000'000, "N",
                (std::string("the same as '") + action + " N'").c_str());
  set.path("run", &options.run, "run directory; its file 'endpoint' names the aggregator");
  set.text("connect", &options.connect, "ENDPOINT", "the aggregator at tcp://HOST:PORT instead");
  declare_key_options(set, &options.keys);
  set.text("name", &options.name, "NAME", "your name, for the history; default: user and host");
  set.real("at-reward", &options.at_reward, 0.0, 1e6, "R",
           "with stop: only once the last 20 learning episodes have a mean reward of R: a share of right "
           "answers, or at most R nats in a run on divergences");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;
  take_numbered(set, numbers, &options);
  if (options.action.empty()) throw UsageError("say what to do, as in " + std::string(kExample));
  if (options.run.empty() == options.connect.empty()) {
    throw UsageError("give one of --run DIR and --connect ENDPOINT");
  }
  const wire::ControlReply reply = as_usage([&] {
    return wire::send_control(endpoint_of(options), control_of(options, set.given("at-reward")),
                              kControlTimeout, load_keys(options.keys, options.run));
  });
  if (!reply.done()) throw Error("refused: " + reply.message());
  std::cout << reply.message() << '\n';
  return 0;
}

}  // namespace allot::app
