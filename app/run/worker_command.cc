#include "app/run/worker_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <optional>

#include "app/cli/as_usage.h"
#include "app/cli/options.h"
#include "app/cli/stop_signal.h"
#include "app/cli/version.h"
#include "app/run/grader_option.h"
#include "app/run/identity.h"
#include "app/run/model_options.h"
#include "app/run/run_directory.h"
#include "base/clock.h"
#include "base/device.h"
#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"
#include "evaluation/grader_process.h"
#include "evaluation/task.h"
#include "model/storage_formats.h"
#include "wire/codec.h"
#include "wire/endpoint.h"
#include "wire/episode_codec.h"
#include "wire/features.h"
#include "wire/messages.pb.h"
#include "wire/spec.h"
#include "worker/connection.h"
#include "worker/spec_conditions.h"

namespace allot::app {
namespace {

using namespace std::chrono_literals;

constexpr Duration kFirstWait = 250ms;
constexpr Duration kLongestWait = 10s;

std::string default_name() {
  char host[256] = "worker";
  ::gethostname(host, sizeof host - 1);
  return std::string(host) + "-" + std::to_string(::getpid());
}

using worker::AggregatorPlace;

// Waits until an aggregator has announced its place in the run directory; nothing when asked to stop before.
std::optional<AggregatorPlace> find_aggregator(const WorkerOptions& options, const std::atomic<bool>& stop) {
  if (!options.connect.empty()) return AggregatorPlace{options.connect, load_keys(options.keys, options.run)};
  bool told = false;
  while (!stop) {
    if (auto endpoint = read_endpoint(options.run))
      return AggregatorPlace{*endpoint, load_keys(options.keys, options.run)};
    if (!std::exchange(told, true)) spdlog::info("waiting for an aggregator of {}", options.run.string());
    pause_for(kFirstWait);
  }
  return std::nullopt;
}

// The place by --connect or the run directory, with the keys of the files as they are now, if it is not
// `known`. Whoever may write there is trusted with the run and its history, and so also with the key of the
// new place. A worker with keys never follows to a place without one: then the key of that place is missing,
// and this throws.
std::optional<AggregatorPlace> moved_aggregator(const WorkerOptions& options, const AggregatorPlace& known) {
  const auto endpoint = options.connect.empty() ? read_endpoint(options.run) : std::optional(options.connect);
  if (!endpoint) return std::nullopt;
  AggregatorPlace now{*endpoint, load_keys(options.keys, options.run)};
  if (now == known) return std::nullopt;
  return now;
}

// Waits for one frame in short steps, so that a signal to stop is noticed in between.
std::optional<std::string> receive(wire::Client* client, Duration wait, const std::atomic<bool>& stop) {
  const auto deadline = std::chrono::steady_clock::now() + wait;
  while (!stop && std::chrono::steady_clock::now() < deadline) {
    if (auto frame = client->receive(kFirstWait)) return frame;
  }
  return std::nullopt;
}

// Asks the aggregator which run it serves, until it answers; nothing when asked to stop before. The worker
// must know the run to find the model, which its hello names. `place` follows an aggregator that moves.
std::optional<wire::RunSpec> ask_for_run(const WorkerOptions& options, AggregatorPlace* place,
                                         const std::atomic<bool>& stop) {
  const std::string& endpoint = place->endpoint;
  std::string told;
  for (Duration wait = kFirstWait; !stop; wait = std::min(2 * wait, kLongestWait)) {
    wire::Client client(endpoint, place->keys);
    wire::Envelope question;
    question.set_number(1);
    question.mutable_hello()->set_client(true);
    client.send(wire::encode(question));
    const auto frame = receive(&client, wait, stop);
    if (!frame) {
      // Goes on, because an operator may add the key while this worker waits.
      const auto failure = client.handshake_failure();
      if (failure && *failure != told) spdlog::warn("{}: {}", endpoint, told = *failure);
      if (place->keys) place->keys->try_other_server();
      try {
        if (auto moved = moved_aggregator(options, *place)) *place = std::move(*moved);
      } catch (const Error& error) {  // perhaps a file that is just being replaced
        spdlog::warn("{}", error.what());
      }
      continue;
    }
    const auto decoded = wire::decode(*frame);
    if (const auto* failure = std::get_if<wire::DecodeFailure>(&decoded)) {
      if (failure->fault == wire::DecodeFault::kOtherVersion)
        throw Mismatch("cannot work for " + endpoint + ": " + failure->message);
      throw NetworkError("the answer of " + endpoint + " cannot be read: " + failure->message);
    }
    const auto& answer = std::get<wire::Envelope>(decoded);
    if (answer.has_refused())
      throw Mismatch(endpoint + " refuses this worker: " + answer.refused().message());
    if (answer.has_welcome()) {
      wire::check_version(answer.welcome().spec());
      return answer.welcome().spec();
    }
  }
  return std::nullopt;
}

// Where a run has one task, the file is for it, and the aggregator says what is wrong with it; of several
// tasks each file is for those whose data it has.
void set_train_paths(std::span<const std::string> files, wire::RunSpec* spec) {
  std::vector<wire::DatasetIdentity*> data = {spec->mutable_task()->mutable_train()};
  if (spec->evaluation().more_size() > 0)
    for (wire::EvaluationTask& more : *spec->mutable_evaluation()->mutable_more())
      data.push_back(more.mutable_task()->mutable_train());
  if (data.size() == 1 && files.size() > 1)
    throw UsageError(fmt::format("--train is given {} times, and the run has one task", files.size()));
  for (const std::string& file : files) {
    if (file.empty()) continue;  // as a config file writes none
    const std::string path = absolute_path(file).string();
    if (data.size() == 1) {
      data.front()->set_path(path);
      continue;
    }
    const std::string sha256 = sha256_file(path);
    bool found = false;
    for (wire::DatasetIdentity* one : data) {
      if (one->sha256() != sha256) continue;
      one->set_path(path);
      found = true;
    }
    if (!found)
      throw Mismatch(fmt::format("none of the run's {} tasks asks the questions of {}, whose SHA-256 is {}",
                                 data.size(), file, sha256));
  }
}

// The run's spec with the paths of this machine.
wire::RunSpec with_local_paths(wire::RunSpec spec, const WorkerOptions& options) {
  spec.set_model_path(options.model.empty() ? recorded_directory(spec.model_path(), "--model").string()
                                            : absolute_path(options.model).string());
  if (options.adapter) {
    spec.mutable_model()->mutable_adapter()->set_path(absolute_path(*options.adapter).string());
  } else if (spec.model().has_adapter()) {
    wire::AdapterIdentity& adapter = *spec.mutable_model()->mutable_adapter();
    adapter.set_path(recorded_directory(adapter.path(), "--adapter").string());
  }
  set_train_paths(options.train, &spec);
  if (!options.heldout.empty())
    spec.mutable_task()->mutable_heldout()->set_path(absolute_path(options.heldout).string());
  return spec;
}

// The task of the spec, which this worker can grade.
std::unique_ptr<evaluation::Task> task_of(const wire::TaskSpec& spec, const WorkerOptions& options) {
  auto task = evaluation::make_task(worker::task_source(spec));
  if (task->name() != spec.name()) {
    throw Mismatch("the run's task is called " + spec.name() + " and its task file " +
                   std::string(task->name()) + "; the run's spec is damaged, start the run from scratch");
  }
  evaluation::require_grader(*task, options.grader);
  if (task->version() != spec.version()) {
    throw Mismatch("the run grades with version " + std::to_string(spec.version()) + " of task " +
                   spec.name() + ", this worker has version " + std::to_string(task->version()) +
                   "; use the build of allot that started the run");
  }
  return task;
}

// No other start of this worker can have what its device has not, so that is a mismatch.
void check_formats(const wire::RunSpec& spec, const WorkerOptions& options) {
  try {
    model::require_formats(worker::weight_storage(spec.generation()), worker::key_format(spec.generation()),
                           parse_device(options.device));
  } catch (const Unsupported& error) {
    throw Mismatch(fmt::format("the run is not for this worker's device: {}", error.what()));
  }
}

wire::Hello introduction(const wire::RunSpec& spec, const WorkerOptions& options, const std::string& device) {
  const auto task = task_of(spec.task(), options);
  wire::Hello hello;
  hello.set_worker(options.name.empty() ? default_name() : options.name);
  hello.set_build(version());
  hello.set_device(device);
  for (const RewardKindRow& kind : reward_kinds()) hello.add_kinds(wire::to_wire(kind.kind));
  hello.set_replies(true);
  for (const std::string_view feature : wire::known_features()) hello.add_features(std::string(feature));
  std::optional<std::filesystem::path> adapter;
  if (spec.model().has_adapter()) adapter = spec.model().adapter().path();
  *hello.mutable_model() = to_wire(model::identify_model(spec.model_path(), {.adapter = adapter}));
  if (!spec.model().weights_sha256().empty())
    hello.mutable_model()->set_weights_sha256(model::whole_weights_sha256(spec.model_path()));
  *hello.mutable_train() = to_wire(worker::load(*task, spec.task().train()));
  if (spec.task().heldout_questions() > 0)
    *hello.mutable_heldout() = to_wire(worker::load(*task, spec.task().heldout()));
  for (const wire::EvaluationTask& more : spec.evaluation().more())
    *hello.add_more() = to_wire(worker::load(*task_of(more.task(), options), more.task().train()));
  return hello;
}

}  // namespace

int run_worker_command(std::span<const std::string> arguments, const DeviceOf& device_of,
                       const RunnerOf& runner_of) {
  WorkerOptions options;
  GraderOption grading;
  OptionSet set("worker",
                "score schedules for an aggregator until the run is finished or a signal asks to stop",
                "allot worker --connect tcp://aggregator:5557 --model /models/tiny-gsm");
  set.path("run", &options.run,
           "run directory; its file 'endpoint' names the aggregator, even after it has moved");
  set.text("connect", &options.connect, "ENDPOINT", "the aggregator at tcp://HOST:PORT instead");
  declare_key_options(set, &options.keys);
  declare_model_option(
      &set, &options.model,
      "the run's model, if it is not where the run says: a directory, or org/name[@revision] in the local cache of the hub");
  declare_adapter_option(&set, &options.adapter,
                         "adapter directory, if the run has one and it is not where the run says");
  set.texts(
      "train", &options.train, "FILE",
      "training questions, if they are not where the run says; of an evaluation its questions, for several "
      "tasks once for each file");
  set.path("heldout", &options.heldout, "held-out questions, if they are not where the run says");
  set.text("name", &options.name, "NAME",
           "unique among the run's workers; default: host name and process number");
  set.device(&options.device);
  set.integer("threads", &options.threads, 0, 4096, "N", "threads of the model; 0 uses all cores");
  set.integer("max-sequences", &options.max_sequences, 1, 65536, "N", "replies decoded together");
  declare_grader_option(&set, &grading, "program that grades replies, for a run");
  set.flag("exit-when-finished", &options.exit_when_finished, "end when the run is finished");
  set.integer(
      "drained-exit-code", &options.drained_exit_code, 0, 255, "CODE",
      "exit status after a signal to stop, for a supervisor to which 0 means that the run is finished");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;
  options.grader = grading.grader();
  if (options.run.empty() == options.connect.empty()) {
    throw UsageError("give one of --run DIR and --connect ENDPOINT");
  }

  if (!options.connect.empty()) as_usage([&] { wire::Client(options.connect); });
  const auto& stop = watch_stop_signals();
  auto aggregator = find_aggregator(options, stop);
  if (!aggregator) return options.drained_exit_code;
  const auto run = ask_for_run(options, &*aggregator, stop);
  if (!run) return options.drained_exit_code;
  // An aggregator of the previous release would not notice.
  if (options.adapter && !run->model().has_adapter()) {
    throw Mismatch("the run's model '" + run->model().id() + "' has no adapter, this worker has --adapter " +
                   options.adapter->string() + "; leave it out");
  }
  check_formats(*run, options);
  WorkerDevice device = device_of(options);
  const wire::Hello hello = introduction(with_local_paths(*run, options), options, device.text);

  worker::ConnectionOptions to{.endpoint = aggregator->endpoint,
                               .keys = aggregator->keys,
                               .exit_when_finished = options.exit_when_finished};
  to.moved = [&](const AggregatorPlace& known) { return moved_aggregator(options, known); };
  to.memory_use = std::move(device.memory_use);
  to.preempted = [] { return stop_signal() == SIGTERM; };
  worker::Connection connection(std::move(to));
  const int code = connection.run(
      hello, [&](const wire::RunSpec& spec) { return runner_of(with_local_paths(spec, options), options); },
      stop);
  return stop ? options.drained_exit_code : code;
}

}  // namespace allot::app
