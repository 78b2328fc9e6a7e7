// allot status: shows the progress of a run. Asks the aggregator if one runs, else reads the run directory.
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <iostream>
#include <optional>
#include <string>

#include "aggregator/run_data.h"
#include "app/cli/as_usage.h"
#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/cli/stop_signal.h"
#include "app/run/aggregator_state.h"
#include "app/run/key_options.h"
#include "app/view/status_screen.h"
#include "app/view/status_view.h"
#include "base/clock.h"
#include "base/error.h"
#include "wire/status_query.h"

namespace allot::app {
namespace {

constexpr Duration kStatusTimeout = std::chrono::seconds(3);

struct StatusOptions {
  std::filesystem::path run;
  std::string connect;
  KeyOptions keys;
  bool json = false;
  bool watch = false;
  double interval = 2;
};

// Exit codes besides those of every command: the figures are from the history, though an aggregator runs.
constexpr int kSilent = 4;
constexpr int kNeedsKey = 5;

struct Answer {
  wire::Status status;
  AggregatorState aggregator = AggregatorState::kAnswers;
  std::string why_not = {};  // it does not answer, in words
};

Answer ask(const StatusOptions& options) {
  if (!options.connect.empty())
    return {as_usage(
        [&] { return wire::query_status(options.connect, kStatusTimeout, load_keys(options.keys, "")); })};
  wire::Status status;
  AskedAggregator asked = ask_aggregator_of(options.run, options.keys, kStatusTimeout, &status);
  if (asked.state == AggregatorState::kAnswers) return {std::move(status)};
  return {status_of(aggregator::read_run(options.run)), asked.state, std::move(asked.why)};
}

int exit_code(AggregatorState aggregator) {
  switch (aggregator) {
    case AggregatorState::kSilent:
      return kSilent;
    case AggregatorState::kNeedsKey:
      return kNeedsKey;
    case AggregatorState::kAnswers:
    case AggregatorState::kNone:
      break;
  }
  return 0;
}

std::string json_of(const Answer& answer) {
  return json_line(to_json(answer.status, {.running = answer.aggregator != AggregatorState::kNone,
                                           .aggregator = std::string(name(answer.aggregator)),
                                           .why_not_ready = answer.why_not,
                                           .at_ms = SystemClock().now().time_since_epoch().count()}));
}

// Where the figures come from when the aggregator did not give them; empty when it did.
std::string source_of(const Answer& answer) {
  return answer.why_not.empty() ? "" : answer.why_not + "; this is from the run's history";
}

// The answer, or why there is none.
struct Look {
  std::optional<Answer> answer;
  std::string trouble;
};

Look look(const StatusOptions& options) {
  try {
    Look look{ask(options), ""};
    look.trouble = source_of(*look.answer);
    return look;
  } catch (const NetworkError& error) {
    return {std::nullopt, std::string(error.what()) + "; trying again"};
  }
}

// The terminal while a screen is drawn on it: uses the alternate screen without a cursor, and restores both
// at the end.
class Terminal {
 public:
  Terminal() {
    struct sigaction action = {};
    action.sa_handler = [](int) {};  // only ends the wait: the next update draws for the new size
    ::sigaction(SIGWINCH, &action, nullptr);
    std::cout << "\x1b[?1049h\x1b[?25l" << std::flush;
  }
  ~Terminal() { std::cout << "\x1b[?25h\x1b[?1049l" << std::flush; }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  static ScreenSize size() {
    winsize window = {};
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_col == 0) return {};
    // A character in the last column would wrap on some terminals.
    return {.columns = window.ws_col - size_t{1}, .rows = window.ws_row};
  }

  // Each line overwrites the old one, so nothing flickers.
  static void draw(const std::vector<std::string>& lines) {
    std::string text = "\x1b[H";
    for (size_t i = 0; i < lines.size(); ++i) text += (i == 0 ? "" : "\n") + lines[i] + "\x1b[K";
    std::cout << text << "\x1b[J" << std::flush;
  }
};

// Shows the run until it is finished or a signal asks to stop; an aggregator that does not answer is asked
// again until then.
int watch(const StatusOptions& options) {
  const auto& stop = watch_stop_signals();
  const std::chrono::duration<double> interval(options.interval);
  std::optional<Answer> last;
  {
    const bool draws = !options.json && ::isatty(STDOUT_FILENO) != 0;
    std::optional<Terminal> terminal;
    while (!stop) {
      const Look now = look(options);
      if (now.answer) last = now.answer;
      if (options.json) {
        if (now.answer) std::cout << json_of(*now.answer) << std::endl;
      } else if (!draws) {
        if (now.answer) std::cout << status_line(now.answer->status) << std::endl;
      }
      if (!draws && !now.trouble.empty()) std::cerr << now.trouble << std::endl;
      const bool finished = now.answer && now.answer->status.stage() == "finished";
      const auto next = std::chrono::steady_clock::now() + interval;
      do {
        if (draws) {
          if (!terminal) terminal.emplace();
          Terminal::draw(status_screen(last ? last->status : wire::Status(), now.trouble, Terminal::size()));
        }
        if (finished) break;
        const auto rest =
            std::chrono::ceil<std::chrono::milliseconds>(next - std::chrono::steady_clock::now());
        if (rest.count() > 0) pause_for(rest);
      } while (!stop && std::chrono::steady_clock::now() < next);
      if (finished) break;
    }
  }
  // Prints the last status again, so that it stays readable after the screen is restored.
  if (last && !options.json && ::isatty(STDOUT_FILENO))
    std::cout << format_status(last->status) << std::flush;
  return 0;
}

}  // namespace

int run_status(std::span<const std::string> arguments) {
  StatusOptions options;
  OptionSet set("status", "show the progress of a run, running or not",
                "allot status --run runs/quickstart --watch");
  set.path("run", &options.run, "run directory");
  set.text("connect", &options.connect, "ENDPOINT", "ask the aggregator at tcp://HOST:PORT instead");
  declare_key_options(set, &options.keys);
  set.flag("json", &options.json, "print one JSON object (with --watch: one a line)");
  set.flag("watch", &options.watch, "keep showing it until the run is finished");
  set.real("interval", &options.interval, 0.1, 3600, "S", "seconds between two updates of --watch");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;
  if (options.run.empty() == options.connect.empty()) {
    throw UsageError("give one of --run DIR and --connect ENDPOINT");
  }
  if (options.watch) return watch(options);
  const Answer answer = ask(options);
  if (options.json) {
    std::cout << json_of(answer) << std::endl;
  } else {
    std::cout << format_status(answer.status) << std::flush;
    if (const std::string source = source_of(answer); !source.empty()) std::cout << source << std::endl;
  }
  return exit_code(answer.aggregator);
}

}  // namespace allot::app
