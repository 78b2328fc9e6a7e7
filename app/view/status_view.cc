#include "app/view/status_view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "aggregator/learning_curve.h"
#include "aggregator/metrics.h"
#include "aggregator/run_spec.h"
#include "aggregator/wire_conversion.h"
#include "app/cli/version.h"
#include "app/report/run_summary.h"
#include "app/report/run_text.h"
#include "app/view/progress.h"
#include "base/number_text.h"
#include "episode/reward_kind.h"

namespace allot::app {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using nlohmann::json;

json message_json(const Message& message);

// One value of a field; `i` is its index in a repeated one.
json value_json(const Message& message, const FieldDescriptor* field, int i) {
  const auto& reflection = *message.GetReflection();
  const bool list = field->is_repeated();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return list ? reflection.GetRepeatedInt32(message, field, i) : reflection.GetInt32(message, field);
    case FieldDescriptor::CPPTYPE_INT64:
      return list ? reflection.GetRepeatedInt64(message, field, i) : reflection.GetInt64(message, field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return list ? reflection.GetRepeatedUInt32(message, field, i) : reflection.GetUInt32(message, field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return list ? reflection.GetRepeatedUInt64(message, field, i) : reflection.GetUInt64(message, field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return list ? reflection.GetRepeatedDouble(message, field, i) : reflection.GetDouble(message, field);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return list ? reflection.GetRepeatedFloat(message, field, i) : reflection.GetFloat(message, field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return list ? reflection.GetRepeatedBool(message, field, i) : reflection.GetBool(message, field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return (list ? reflection.GetRepeatedEnum(message, field, i) : reflection.GetEnum(message, field))
          ->name();
    case FieldDescriptor::CPPTYPE_STRING:
      return list ? reflection.GetRepeatedString(message, field, i) : reflection.GetString(message, field);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return message_json(list ? reflection.GetRepeatedMessage(message, field, i)
                               : reflection.GetMessage(message, field));
  }
  return nullptr;
}

json field_json(const Message& message, const FieldDescriptor* field) {
  if (!field->is_repeated()) return value_json(message, field, 0);
  json list = json::array();
  const int size = message.GetReflection()->FieldSize(message, field);
  for (int i = 0; i < size; ++i) list.push_back(value_json(message, field, i));
  return list;
}

// Every field under its name. (Protobuf's own JSON writes 64-bit numbers as text.)
json message_json(const Message& message) {
  json object = json::object();
  const auto& descriptor = *message.GetDescriptor();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    object[descriptor.field(i)->name()] = field_json(message, descriptor.field(i));
  }
  return object;
}

// The row of the run's kind of reward, so that a reader needs no list of kinds; null for a kind that only a
// later release knows.
json rewards_json(const RewardKindRow* kind) {
  if (kind == nullptr) return nullptr;
  // JSON has no infinity.
  const auto bound = [](double value) { return std::isfinite(value) ? json(value) : json(nullptr); };
  return {{"name", kind->name},         {"measure", kind->measure},
          {"unit", kind->unit},         {"per_unit", kind->per_unit},
          {"decimals", kind->decimals}, {"low", bound(kind->low)},
          {"high", bound(kind->high)},  {"higher_is_better", kind->higher_is_better}};
}

// With the accuracy in the form of evaluation::to_json and its 95 % interval; null before the first answer.
json score_json(const wire::Score& score) {
  json object = message_json(score);
  object["n"] = score.answered();
  object.erase("answered");
  for (const char* name : {"accuracy", "interval_95"}) object[name] = nullptr;
  if (score.has_mean()) {
    object["accuracy"] = score.mean();  // no interval, because the messages have no spread of graded scores
    return object;
  }
  object["mean"] = nullptr;
  if (const auto interval = interval_of(score)) {
    object["accuracy"] = mean_score(score);
    object["interval_95"] = {interval->low, interval->high};
  }
  return object;
}

// The first `most` workers in the order of the list.
json workers_json(const wire::Status& status, size_t most) {
  std::vector<const wire::WorkerStatus*> workers;
  for (const wire::WorkerStatus& worker : status.workers()) workers.push_back(&worker);
  const auto shown = workers.begin() + static_cast<std::ptrdiff_t>(std::min(most, workers.size()));
  std::partial_sort(workers.begin(), shown, workers.end(), [&](const auto* a, const auto* b) {
    const bool a_silent = aggregator::is_silent(*a, status), b_silent = aggregator::is_silent(*b, status);
    return a_silent != b_silent ? a_silent : a->worker() < b->worker();
  });
  json list = json::array();
  for (auto at = workers.begin(); at != shown; ++at) {
    list.push_back(message_json(**at));
    list.back()["silent"] = aggregator::is_silent(**at, status);
  }
  return list;
}

double in_gib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

// "granted 40, accepted 38, expired 2": the counters that are not zero.
std::string counters_line(const wire::Counters& counters) {
  std::string line;
  const json named = message_json(counters);
  for (const auto& [name, count] : named.items()) {
    if (count != 0) line += fmt::format("{}{} {}", line.empty() ? "" : ", ", name, count.get<int64_t>());
  }
  return line.empty() ? "none" : line;
}

}  // namespace

std::string policy_numbers(const wire::Status& status) {
  std::string text;
  for (const wire::NamedNumber& number : status.policy_numbers()) {
    text += fmt::format(", {} {:.3f}", number.name(), number.value());
  }
  // An aggregator of the previous release sends only the entropy.
  if (text.empty() && status.entropy() != 0) text = fmt::format(", entropy {:.3f}", status.entropy());
  return text;
}

json preflight_json(const wire::Preflight& preflight) {
  json object = message_json(preflight);
  for (const char* name : {"cost", "run_worker_seconds", "run_worker_seconds_least"}) {
    if (object[name] == 0) object[name] = nullptr;
  }
  if (preflight.stop_reason().empty()) object["stop_reason"] = nullptr;
  // Each accuracy also as every other JSON has it.
  for (int i = 0; i < preflight.schedules_size(); ++i) {
    const wire::PreflightSchedule& schedule = preflight.schedules(i);
    wire::Score score;
    score.set_answered(schedule.answered());
    score.set_correct(schedule.correct());
    const double right = schedule.mean() * static_cast<double>(schedule.answered());
    if (std::abs(right - static_cast<double>(schedule.correct())) > 1e-6) score.set_mean(schedule.mean());
    const json as_usual = score_json(score);
    for (const char* name : {"n", "accuracy", "interval_95"})
      object["schedules"][static_cast<size_t>(i)][name] = as_usual[name];
  }
  return object;
}

wire::Status status_of(const aggregator::RunData& run) {
  wire::Status status;
  aggregator::describe_run(run.spec, &status);
  status.set_stage(run.stage);
  status.set_lease_ms(run.lease_ms);
  status.set_episodes_wanted(run.episodes_wanted);
  status.set_episodes_done(run.episodes_learned());
  aggregator::LearningCurve curve(run.kind);
  for (const auto& episode : run.learned) curve.add(episode.reward);
  curve.write(status.mutable_curve());
  if (!run.learned.empty()) status.set_mean_reward_recent(moving_mean(run.learned, run.kind).mean);
  if (!run.versions.empty()) {
    const auto& version = run.versions.back();
    aggregator::describe_policy(version.described, &status);
  }
  status.mutable_recommended()->Add(run.recommended.begin(), run.recommended.end());
  status.set_policy_version(run.policy_version);
  status.set_elapsed_s(run.elapsed_s);
  status.set_eta_s(run.stage == "finished" ? 0 : -1);
  *status.mutable_counters() = run.counters;
  for (const aggregator::RunControlled& controlled : run.controls) {
    *status.add_steering() = aggregator::to_wire(controlled);
  }
  if (run.preflight) *status.mutable_preflight() = *run.preflight;
  status.set_until_settled(run.until_settled);
  status.set_settled(run.settled);
  status.set_paused(run.paused);
  status.set_target_reward(run.target_reward);
  const auto shown = std::min(run.given_up.size(), aggregator::kGivenUpShown);
  for (const auto& given_up : std::span(run.given_up).last(shown))
    *status.add_given_up() = aggregator::to_wire(given_up);
  for (const auto& row : run.scores) {
    auto* score = status.add_scores();
    score->set_label(row.label);
    score->mutable_samples()->Add(row.samples.begin(), row.samples.end());
    score->set_answered(std::ssize(row.scores));
    score->set_correct(std::ranges::count(row.scores, 1.0));
    const double sum = std::accumulate(row.scores.begin(), row.scores.end(), 0.0);
    if (sum != static_cast<double>(score->correct()))
      score->set_mean(sum / static_cast<double>(row.scores.size()));
    score->set_wanted(run.spec.task().heldout_questions());
  }
  if (run.spec.cross_check() > 0) *status.mutable_cross_check() = run.checks.describe();
  return status;
}

json to_json(const wire::Status& status, const StatusContext& context) {
  json object = json::object();
  const RewardKindRow* kind = find_reward_kind(status.reward_kind());
  const auto& descriptor = *wire::Status::descriptor();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor* field = descriptor.field(i);
    if (field->number() == wire::Status::kWorkersFieldNumber) {
      object[field->name()] = workers_json(status, context.most_workers);
    } else if (field->number() == wire::Status::kScoresFieldNumber) {
      json& scores = object[field->name()] = json::array();
      for (const wire::Score& score : status.scores()) scores.push_back(score_json(score));
    } else {
      object[field->name()] = field_json(status, field);
    }
  }
  for (int i = 0; i < status.steering_size(); ++i)
    object["steering"][i]["action"] = action_name(status.steering(i));
  object["preflight"] = status.has_preflight() ? preflight_json(status.preflight()) : json(nullptr);
  if (!status.has_outlook()) object["outlook"] = nullptr;
  if (!status.has_cross_check()) object["cross_check"] = nullptr;
  object["rewards"] = rewards_json(kind);
  object["verified"] = rewards_json(&row_of(kVerifiedKind));
  if (status.target_reward() <= 0) object["target_reward"] = nullptr;
  if (status.eta_s() < 0) object["eta_s"] = nullptr;
  const aggregator::WorkerCounts counts = aggregator::count_workers(status);
  object["worker_counts"] = {
      {"all", counts.all()}, {"busy", counts.busy}, {"idle", counts.idle}, {"silent", counts.silent}};
  object["schema"] = 2;
  object["version"] = version();
  object["running"] = context.running;
  object["aggregator"] = context.aggregator;
  object["ready"] = context.running && context.why_not_ready.empty();
  object["why_not_ready"] = context.why_not_ready;
  object["at_ms"] = context.at_ms;
  return object;
}

std::string json_line(const json& object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string format_status(const wire::Status& status) {
  std::string text = fmt::format("run       {}, stage {}{}\n", status.run_id(), status.stage(),
                                 status.paused() ? ", paused" : "");
  text += fmt::format("episodes  {} of {} done, {} running, {:.2f} per second, {}, {} spent\n",
                      status.episodes_done(), status.episodes_wanted(), status.episodes_running(),
                      status.episodes_per_second(), eta_text(status), duration_text(status.elapsed_s()));
  text += fmt::format("policy    version {}{}, recent mean reward {}\n", status.policy_version(),
                      policy_numbers(status), recent_reward_text(status).value_or("none"));
  text += fmt::format("schedule  {}\n", schedule_text(status));
  if (status.has_outlook()) {
    const RewardKindRow* kind = find_reward_kind(status.reward_kind());
    const auto& outlook = status.outlook();
    text += fmt::format(
        "outlook   {}over uniform {}, left to gain {}\n", status.settled() ? "settled; " : "",
        kind ? kind->format_difference(outlook.gain(), outlook.low(), outlook.high())
             : reward_text(status, outlook.gain()),
        kind ? kind->format_amount(outlook.left_to_gain()) : reward_text(status, outlook.left_to_gain()));
  }
  for (const std::string& line : preflight_lines(status.preflight(), status.workers_size()))
    text += "preflight " + line + "\n";
  for (const auto& score : status.scores()) {
    text += fmt::format("score     {:<8} {}/{} correct ({}), {} wanted\n", score.label(), score.correct(),
                        score.answered(), score_text(mean_score(score)), score.wanted());
  }
  if (status.target_reward() > 0)
    text += fmt::format("target    learning stops at a recent mean reward of {}\n",
                        reward_text(status, status.target_reward()));
  for (const auto& event : status.steering())
    text += fmt::format("control   {} by {}\n", control_text(event), event.by());
  for (const auto& given_up : status.given_up()) {
    text += fmt::format("given up  episode {}{}: {}\n", given_up.episode(),
                        given_up.poisoned() ? " (poisoned)" : "", given_up.reason());
  }
  if (status.has_cross_check()) text += "checks    " + cross_check_text(status.cross_check()) + "\n";
  text += "leases    " + counters_line(status.counters()) + "\n";
  for (const auto& worker : status.workers()) {
    text += fmt::format("worker    {} on {}, allot {}: {} leases, {} episodes done, seen {:.1f} s ago\n",
                        worker.worker(), worker.device(), worker.build(), worker.leases(),
                        worker.episodes_done(), static_cast<double>(worker.last_seen_ms()) / 1000);
    if (worker.has_load()) {
      const wire::WorkerLoad& load = worker.load();
      text += fmt::format(
          "          {:.0f} tokens/s of replies, {:.0f} of prompts; busy {:.0f}%, batch {:.0f}% in use{}\n",
          static_cast<double>(load.output_tokens()) / load.seconds(),
          static_cast<double>(load.prompt_tokens()) / load.seconds(),
          100 * load.busy_seconds() / load.seconds(),
          load.busy_seconds() > 0 ? 100 * load.slot_seconds() / load.busy_seconds() : 0.0,
          load.memory_total_bytes() > 0
              ? fmt::format("; {:.1f} of {:.1f} GiB", in_gib(load.memory_used_bytes()),
                            in_gib(load.memory_total_bytes()))
              : "");
    }
    if (worker.cordoned()) text += "          is cordoned: gets no leases until allot control uncordon\n";
    if (worker.quarantined_ms() > 0) {
      text += fmt::format("          waits {:.0f} s after {} failures in a row, the last: {}\n",
                          static_cast<double>(worker.quarantined_ms()) / 1000, worker.failures_in_a_row(),
                          worker.last_failure());
    }
  }
  return text;
}

}  // namespace allot::app
