// allot status: how far a run is. Asks the aggregator where one runs, else reads the run directory.
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <thread>

#include "aggregator/run_data.h"
#include "app/command.h"
#include "app/key_options.h"
#include "app/options.h"
#include "app/run_directory.h"
#include "app/status_view.h"
#include "base/error.h"
#include "wire/status_query.h"

namespace allot::app {
namespace {

constexpr Duration kAnswerTimeout = std::chrono::seconds(3);

struct StatusOptions {
  std::filesystem::path run;
  std::string connect;
  KeyOptions keys;
  bool json = false;
  bool watch = false;
  double interval = 2;
};

struct Answer {
  wire::Status status;
  bool running = false;  // an aggregator answered
};

Answer ask(const StatusOptions& options) {
  if (!options.connect.empty()) {
    return {wire::query_status(options.connect, kAnswerTimeout, load_keys(options.keys, "")), true};
  }
  if (const auto endpoint = read_endpoint(options.run)) {
    const auto keys = load_keys(options.keys, options.run);
    try {
      return {wire::query_status(*endpoint, kAnswerTimeout, keys), true};
    } catch (const NetworkError&) {
      // The aggregator that wrote the file is gone or was killed; the history says how far it came.
    }
  }
  return {status_of(aggregator::read_run(options.run)), false};
}

void print(const Answer& answer, bool as_json) {
  if (as_json) {
    auto json = to_json(answer.status);
    json["running"] = answer.running;
    std::cout << json.dump() << std::endl;
  } else {
    std::cout << format_status(answer.status)
              << (answer.running ? "" : "no aggregator runs; this is from the run's history\n") << std::flush;
  }
}

}  // namespace

int run_status(std::span<const std::string> arguments) {
  StatusOptions options;
  OptionSet set("status", "show how far a run is, running or not",
                "allot status --run runs/quickstart --watch");
  set.path("run", &options.run, "run directory");
  set.text("connect", &options.connect, "ENDPOINT", "ask the aggregator at tcp://HOST:PORT instead");
  declare_key_options(set, &options.keys);
  set.flag("json", &options.json, "print one JSON object (with --watch: one a line)");
  set.flag("watch", &options.watch, "show it again and again until the run is finished");
  set.real("interval", &options.interval, 0.1, 3600, "S", "seconds between two looks of --watch");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;
  if (options.run.empty() == options.connect.empty()) {
    throw UsageError("give one of --run DIR and --connect ENDPOINT");
  }
  while (true) {
    const Answer answer = ask(options);
    if (options.watch && !options.json && ::isatty(STDOUT_FILENO)) std::cout << "\x1b[H\x1b[2J";
    print(answer, options.json);
    if (!options.watch || answer.status.stage() == "finished") return 0;
    std::this_thread::sleep_for(std::chrono::duration<double>(options.interval));
  }
}

}  // namespace allot::app
