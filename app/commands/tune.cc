// allot tune: learn a schedule on this machine. The real aggregator and real workers run as child processes;
// this process defines the run, watches over them, shows their progress and writes the results.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <iostream>
#include <iterator>
#include <optional>
#include <vector>

#include "aggregator/http_server.h"
#include "aggregator/run_data.h"
#include "aggregator/run_directory.h"
#include "aggregator/run_spec.h"
#include "app/cli/as_usage.h"
#include "app/cli/child_process.h"
#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/cli/own_executable.h"
#include "app/cli/stop_signal.h"
#include "app/commands/run_results.h"
#include "app/commands/tune_lengths.h"
#include "app/files/schedule_argument.h"
#include "app/report/run_summary.h"
#include "app/run/devices.h"
#include "app/run/grader_option.h"
#include "app/run/local_cluster.h"
#include "app/run/resume.h"
#include "app/run/run_directory.h"
#include "app/run/run_spec_builder.h"
#include "app/scoring/prompt_lengths.h"
#include "app/view/progress.h"
#include "base/error.h"
#include "evaluation/frontier.h"
#include "evaluation/grader_process.h"
#include "evaluation/task.h"
#include "model/storage_formats.h"
#include "policy/exact_layers.h"
#include "wire/messages.pb.h"
#include "worker/spec_conditions.h"

namespace allot::app {
namespace {

constexpr auto kLookInterval = std::chrono::milliseconds(250);
// The exit status that shells report for a command ended by Ctrl-C.
constexpr int kInterrupted = 128 + SIGINT;

bool finished(const std::filesystem::path& run) {
  return std::filesystem::exists(aggregator::history_path(run)) &&
         aggregator::read_run(run).stage == "finished";
}

// Runs until the run is finished (true) or a signal asks to stop (false). A finished run's aggregator goes on
// where the page is to linger.
bool work(LocalCluster* cluster, const std::filesystem::path& run, bool lingers, ProgressView* view) {
  const auto& stop = watch_stop_signals();
  const SystemClock clock;
  int64_t progress = 0;
  while (!stop) {
    if (const auto status = cluster->status()) {
      view->update(*status, clock.now());
      progress = status->episodes_done() + answered(*status).done;
      if (status->stage() == "finished") break;
    }
    cluster->keep_alive(progress);
    pause_for(kLookInterval);
  }
  if (stop) view->message("stopping: workers hand their episodes back, the aggregator commits");
  const int signal = stop_signal() == SIGTERM ? SIGTERM : SIGINT;
  if (lingers && !stop) {
    cluster->stop_workers(signal);
  } else {
    cluster->stop(signal);
  }
  view->end();
  return !stop || finished(run);
}

// Keeps the page of a finished run.
void linger(LocalCluster* cluster, const std::filesystem::path& run, double seconds) {
  const auto& stop = watch_stop_signals();
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::cerr << "the page " << read_http_url(run).value_or("") << " stays for " << seconds
            << " seconds; Ctrl-C ends it" << std::endl;
  while (!stop && std::chrono::steady_clock::now() < end) {
    cluster->keep_alive(0);
    pause_for(kLookInterval);
  }
  cluster->stop(SIGINT);
}

// The executable that runs the workers and knows their devices.
std::string model_program() {
  const auto program = own_directory() / "allot-model";
  if (std::filesystem::exists(program)) return program.string();
  throw Unsupported("tuning runs a model, but " + program.string() +
                    " was not built; build with LibTorch (cmake --preset cpu, then ninja -C build)");
}

// The totals that are to be verified besides, and the run's own, whose equal among the even ones is looked
// for; none without text. Throws UsageError where they do not fit the run.
std::vector<int64_t> frontier_totals(const std::string& text, const wire::RunSpec& spec) {
  if (text.empty()) return {};
  std::vector<int64_t> totals = parse_totals(text, "--frontier");
  const policy::PolicyConfig part = policy::sampled_part(aggregator::policy_config(spec));
  if (!part.bounds.empty())
    throw UsageError("--frontier " + text + " solves for other totals, which would not keep --bounds " +
                     spec.policy().bounds() + "; leave one of them out, or all bounds but exact layers");
  if (spec.task().heldout_questions() == 0)
    throw UsageError("--frontier " + text + " verifies on held-out questions; name them with --heldout");
  const int64_t least = int64_t{part.layers} * part.floor;
  const auto own = static_cast<int64_t>(spec.policy().total());
  if (std::ranges::find(totals, own) == totals.end()) totals.push_back(own);
  std::ranges::sort(totals);
  if (totals.front() < least)
    throw UsageError(
        fmt::format("--frontier: {} is less than --floor {} in each of {} layers; give at least {}",
                    totals.front(), part.floor, part.layers, least));
  return totals;
}

// Whether the totals were verified of the schedule that the run has now.
bool verified(const std::filesystem::path& run, const std::vector<int64_t>& totals,
              const aggregator::RunData& data) {
  const std::filesystem::path file = run / "frontier.json";
  if (!std::filesystem::exists(file)) return false;
  const evaluation::Frontier found = evaluation::read_frontier(file);
  const auto own = std::ranges::find(found.points, static_cast<int64_t>(data.spec.policy().total()),
                                     &evaluation::FrontierPoint::total);
  return std::ranges::equal(found.points, totals, {}, &evaluation::FrontierPoint::total) &&
         own != found.points.end() && own->learned_schedule.samples == data.recommended;
}

// Runs `allot-model verify --total --equal-even` on the run's schedule, which writes frontier.json. False
// when a signal asks to stop. Throws Error naming the log when it fails.
bool verify_frontier(const std::string& program, const wire::RunSpec& spec, const std::filesystem::path& run,
                     const std::vector<int64_t>& totals, const std::string& device,
                     const std::string& grader) {
  const std::string list = fmt::format("{}", fmt::join(totals, ","));
  std::vector<std::string> words = {program,
                                    "verify",
                                    "--model",
                                    spec.model_path(),
                                    "--data",
                                    spec.task().heldout().path(),
                                    "--run",
                                    run,
                                    "--total",
                                    list,
                                    "--equal-even",
                                    "--limit",
                                    std::to_string(spec.task().heldout_questions()),
                                    "--device",
                                    device};
  if (spec.model().has_adapter()) words.insert(words.end(), {"--adapter", spec.model().adapter().path()});
  const wire::DatasetIdentity& heldout = spec.task().heldout();
  if (heldout.has_question_field()) words.insert(words.end(), {"--question-field", heldout.question_field()});
  if (heldout.has_answer_field()) words.insert(words.end(), {"--answer-field", heldout.answer_field()});
  if (spec.task().has_definition()) words.insert(words.end(), {"--task", aggregator::task_path(run)});
  std::ranges::copy(grader_words(grader), std::back_inserter(words));
  const std::filesystem::path log = log_file(run, "frontier");
  std::cerr << "verifying the totals " << list << "; its progress is in " << log.string() << std::endl;
  return run_child(words, log, "verifying the totals " + list);
}

}  // namespace

int run_tune(std::span<const std::string> arguments) {
  RunOptions run;
  run.until = "settled";
  ClusterOptions cluster;
  std::string device;
  std::string devices;
  std::string frontier;
  std::string lengths;
  int32_t workers_per_device = 1;
  bool json = false;
  GraderOption grading;
  OptionSet set("tune", "learn a schedule on this machine, verify it on held-out questions and report",
                "allot tune --model assets/tiny-gsm --data assets/tiny-gsm/train.jsonl "
                "--heldout assets/tiny-gsm/heldout.jsonl --total 64");
  declare_run_options(set, &run);
  set.integer("workers", &workers_per_device, 1, 1024, "N",
              "worker processes on each device, each with its own copy of the model");
  set.device(&device);
  set.devices(&devices,
              "devices of the workers: all (every CUDA device), or a list like cuda:0,cuda:2,cpu; --device "
              "is short for a list of one (default cpu)");
  set.integer("threads", &cluster.threads, 0, 4096, "N",
              "threads of each worker; 0 divides the cores among them");
  set.integer("max-sequences", &cluster.max_sequences, 0, 65536, "N",
              "replies that a worker decodes together; 0 uses its default");
  set.text(
      "frontier", &frontier, "N,…",
      "at the end also verify what the run gives at these totals, each beside the uniform schedule, and find the "
      "even total that is as accurate as the learned schedule, on the first device; the report shows both");
  set.text("lengths", &lengths, "N,…",
           "learn a schedule for prompts of at most N tokens (1k is 1,024), for those up to the next length, "
           "and so on, each in a run of its own in --run; then ask all held-out questions under each of them "
           "and write schedule.json with a schedule for each length where that pays");
  declare_grader_option(&set, &grading, "program of the workers that grades replies");
  set.flag("json", &json, "print the result as one JSON object");
  std::string http = "127.0.0.1:*";
  set.text("http", &http, "ADDRESS:PORT",
           "serve the live page at this address, read-only; port * lets the system choose one");
  // A page that refreshes every two seconds then shows the end.
  const bool at_terminal = ::isatty(STDERR_FILENO) != 0;
  double linger_seconds = at_terminal ? 3 : 0;
  set.real(
      "linger", &linger_seconds, 0, 1e9, "S",
      "seconds that the live page shows the finished run at the end; by default 3 at a terminal, else 0");
  wire::RunSpec spec;
  Changes changes;
  std::vector<int64_t> totals;
  set.resolve_with([&] {
    if (!device.empty() && !devices.empty()) {
      throw UsageError("--device " + device + " and --devices " + devices +
                       " exclude each other; --devices alone names every device");
    }
    if (!lengths.empty()) {
      (void)parse_lengths(lengths);
      if (!frontier.empty())
        throw UsageError("--frontier " + frontier + " is of one schedule, --lengths " + lengths +
                         " learns several; leave one out");
      if (set.given("episodes") && !set.given("until")) run.until = "episodes";
      cluster.grader = grading.grader();
      return;
    }
    if (holds_run(run.run)) {
      changes = resume_run(set, run, &spec);
      run = options_of_run(spec, run.run);
    } else {
      if (set.given("episodes") && !set.given("until")) run.until = "episodes";
      spec = options_as_usage([&] { return build_run_spec(run); });
      resolve(spec, &run);
    }
    cluster.grader = grading.grader();
    evaluation::require_grader(*evaluation::make_task(worker::task_source(spec.task())), cluster.grader);
    totals = frontier_totals(frontier, spec);
  });
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  const std::string program = model_program();
  const std::string wanted = !devices.empty() ? devices : !device.empty() ? device : "cpu";
  const auto found = [&] { return ask_for_cuda_devices(program); };
  if (!lengths.empty())
    return tune_lengths({.lengths = parse_lengths(lengths),
                         .run = run,
                         .device = choose_devices(wanted, found).front().name(),
                         .threads = cluster.threads,
                         .max_sequences = cluster.max_sequences,
                         .grader = cluster.grader,
                         .json = json},
                        set, run_tune);
  as_usage([&] { (void)aggregator::parse_http_address(http); });
  cluster.aggregator_options = {"--http", http};
  std::ranges::copy(changes.words, std::back_inserter(cluster.aggregator_options));
  const bool was_finished = finished(run.run) && changes.controls.empty();
  const bool lingers = linger_seconds > 0;
  if (!was_finished) {
    const std::vector<Device> places = choose_devices(wanted, found);
    const evaluation::Generation generation = worker::conditions_of(spec).generation;
    for (const Device& place : places) model::require_formats(generation.weights, generation.keys, place);
    cluster.workers = place_workers(places, workers_per_device);
  }
  cluster.run = run.run;
  cluster.log_level = set.log_level();
  // Writes spec.json, in which the aggregator finds the run, or refuses the directory; no other process may
  // work there now.
  { const aggregator::RunDirectory claimed(run.run, spec); }

  std::optional<LocalCluster> running;
  ProgressView view(stderr, at_terminal);
  const auto start = [&] { running.emplace(cluster, [&](const std::string& line) { view.message(line); }); };
  if (was_finished) {
    std::cerr << "the run in " << run.run.string() << " is finished; showing its result" << std::endl;
    if (set.given("linger") && lingers) start();
  } else {
    start();
    if (!work(&*running, run.run, lingers, &view)) {
      std::cerr << "stopped; allot tune --run " << run.run.string() << " goes on where this ended"
                << std::endl;
      return kInterrupted;
    }
  }
  write_results(run.run);
  const auto data = aggregator::read_run(run.run);
  if (!totals.empty() && !stopped_by_preflight(data) && !verified(run.run, totals, data)) {
    if (!verify_frontier(program, data.spec, run.run, totals, choose_devices(wanted, found).front().name(),
                         cluster.grader))
      return kInterrupted;
    write_results(run.run);
  }
  if (json) {
    std::cout << results_json(data, run.run, cluster.grader).dump() << '\n';
  } else {
    std::cout << format_results(data, run.run, cluster.grader);
  }
  std::cout.flush();
  if (running && lingers) linger(&*running, run.run, linger_seconds);
  if (stopped_by_preflight(data)) {
    throw Error("stopped before learning: " + data.preflight->stop_reason());
  }
  return 0;
}

}  // namespace allot::app
