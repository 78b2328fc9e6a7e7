// allot control: pauses, resumes or stops a running run, or changes its number of episodes or the bounds of
// its schedules. The run's history records who asked for it and when.
#include <pwd.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <iostream>
#include <optional>

#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/run/key_options.h"
#include "app/run/run_directory.h"
#include "base/error.h"
#include "policy/bounds.h"
#include "wire/control_query.h"
#include "wire/messages.pb.h"

namespace allot::app {
namespace {

constexpr Duration kAnswerTimeout = std::chrono::seconds(10);

struct ControlOptions {
  std::string action;
  std::string value;  // of episodes and bounds, as given
  std::filesystem::path run;
  std::string connect;
  KeyOptions keys;
  std::string name;
  double at_reward = 0;
};

// User and host, "ann@head-node", as far as the system knows them.
std::string user_and_host() {
  const passwd* user = ::getpwuid(::getuid());
  char host[256] = "unknown host";
  ::gethostname(host, sizeof host - 1);
  return (user != nullptr ? std::string(user->pw_name) : "user " + std::to_string(::getuid())) + "@" + host;
}

wire::Control control_of(const ControlOptions& options, bool with_target) {
  using wire::Control;
  Control control;
  control.set_by(options.name.empty() ? user_and_host() : options.name);
  const std::string& action = options.action;
  if (action == "episodes") {
    int64_t episodes = 0;
    const char* end = options.value.data() + options.value.size();
    const auto [next, error] = std::from_chars(options.value.data(), end, episodes);
    if (error != std::errc{} || next != end || episodes < 1)
      throw UsageError("episodes needs their number, at least 1, not '" + options.value + "'");
    control.set_action(Control::ACTION_EPISODES);
    control.set_episodes(episodes);
  } else if (action == "bounds") {
    if (options.value.empty()) throw UsageError("bounds needs LAYERS:RANGE,…, as in 3:4,5-9:2-12, or none");
    control.set_action(Control::ACTION_BOUNDS);
    if (options.value != "none") control.set_bounds(policy::parse_bounds(options.value).to_string());
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
                 " (it has no file 'endpoint'); only a running run can be controlled");
}

}  // namespace

int run_control(std::span<const std::string> arguments) {
  ControlOptions options;
  OptionSet set("control",
                "pause, resume or stop a running run, or change its number of episodes or its bounds",
                "allot control pause --run runs/cluster");
  set.positional_choice(
      "action", &options.action, {"pause", "resume", "stop", "episodes", "bounds"}, "ACTION",
      "pause (running episodes are finished), resume, stop (learn from them, then verify), episodes, or bounds");
  set.positional(
      "value", &options.value, "VALUE",
      "after 'episodes': learning episodes wanted from now on; after 'bounds': what schedules keep "
      "from now on, as --bounds of allot tune, or none");
  set.path("run", &options.run, "run directory; its file 'endpoint' names the aggregator");
  set.text("connect", &options.connect, "ENDPOINT", "the aggregator at tcp://HOST:PORT instead");
  declare_key_options(set, &options.keys);
  set.text("name", &options.name, "NAME", "your name, for the history; default: user and host");
  set.real("at-reward", &options.at_reward, 0.0, 1e6, "R",
           "with stop: only once the last 20 learning episodes have a mean reward of R: a share of right "
           "answers, or at most R nats in a run on divergences");
  set.require("action");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;
  if (options.run.empty() == options.connect.empty()) {
    throw UsageError("give one of --run DIR and --connect ENDPOINT");
  }
  const wire::ControlReply reply =
      wire::send_control(endpoint_of(options), control_of(options, set.given("at-reward")), kAnswerTimeout,
                         load_keys(options.keys, options.run));
  if (!reply.done()) throw Error("refused: " + reply.message());
  std::cout << reply.message() << '\n';
  return 0;
}

}  // namespace allot::app
