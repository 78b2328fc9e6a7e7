#include "aggregator/run_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "aggregator/history_format.h"
#include "aggregator/holder.h"
#include "aggregator/preflight.h"
#include "aggregator/run_directory.h"
#include "aggregator/run_spec.h"
#include "aggregator/sqlite.h"
#include "base/error.h"
#include "wire/spec.h"

namespace allot::aggregator {
namespace {

Timestamp from_ms(int64_t ms) {
  return Timestamp{Duration{ms}};
}

// The results of one verified schedule while its batches are collected, by question.
struct Candidate {
  std::vector<int32_t> samples;
  std::map<uint32_t, QuestionResult> results;
};

void add_scores(const std::map<std::string, Candidate>& candidates, RunData* run) {
  for (const char* label : {"uniform", "learned", "dense"}) {
    const auto found = candidates.find(label);
    if (found == candidates.end()) continue;
    ScoreRow& row = run->scores.emplace_back();
    row.label = label;
    row.samples = found->second.samples;
    for (const auto& [question, result] : found->second.results) {
      row.questions.push_back(question);
      row.scores.push_back(result.score);
      row.results.push_back(result);
    }
  }
}

// Accepted episodes whose outcome has a seq above a given one, in the order in which they were told.
std::string episodes_after(int64_t schema_version) {
  return fmt::format(
      "SELECT e.episode, e.stage, e.label, e.question_group, e.samples, e.policy_version, e.questions, "
      "o.told_version, o.told_ms, o.worker, o.seconds, o.correct, o.finish, o.prompt_tokens, "
      "o.output_tokens, {}, o.seq, {} FROM outcomes o JOIN episodes e USING(episode) "
      "WHERE o.seq > ? AND o.verdict != 'stale' ORDER BY o.seq",
      schema_version >= 3 ? "o.score" : "NULL", schema_version >= 3 ? "e.kind" : "'answers'");
}
// A history of an older schema has only shares and their entropy.
std::string versions_query(const Database& database, const char* condition) {
  const bool named = check_schema_version(database) >= 3;
  return fmt::format(
      "SELECT version, at_ms, shares, recommended, entropy, {} FROM versions WHERE {} ORDER BY version",
      named ? "layer_name, scalars" : "'share', ''", condition);
}
constexpr const char* kVersionsAfter = "version > ?";
constexpr const char* kEveryKthVersion = "version % ? = 0 OR version = (SELECT max(version) FROM versions)";

// Reads a row of episodes_after() into `row` and `results`, reusing their memory.
void read_row(const Statement& query, EpisodeRow* row, std::vector<QuestionResult>* results) {
  parse_results({query.text(11), query.text(12), query.text(13), query.text(14), query.text(15)}, results);
  row->episode = query.integer(0);
  row->stage = name(parse_stage(query.text(1)));
  row->label = query.text(2);
  row->group = query.integer(3);
  row->kind = parse_episode_kind(query.text(17));
  parse_list(query.text(4), "episodes.samples", &row->samples);
  row->reward = mean_score(*results);
  row->asked_version = query.integer(5);
  row->told_version = query.integer(7);
  row->finished = from_ms(query.integer(8));
  row->worker = query.text(9);
  row->seconds = query.real(10);
  row->output_tokens = 0;
  for (const QuestionResult& result : *results) row->output_tokens += result.output_tokens;
}

VersionRow read_version(const Statement& query) {
  VersionRow row;
  row.version = query.integer(0);
  row.at = from_ms(query.integer(1));
  row.described.layer_name = query.text(5);
  parse_list(query.text(2), "versions.shares", &row.described.per_layer);
  parse_scalars(query.text(6), query.real(4), &row.described);
  parse_list(query.text(3), "versions.recommended", &row.recommended);
  return row;
}

// The episodes that were run once more by workers of other holders, and whether they agree.
void read_checks(const Database& database, RunData* run) {
  if (run->spec.cross_check() <= 0) return;
  Statement query(
      database,
      "SELECT e.kind, first.worker, first.correct, first.finish, first.prompt_tokens, "
      "first.output_tokens, first.score, second.worker, second.correct, second.finish, "
      "second.prompt_tokens, second.output_tokens, second.score FROM episodes e "
      "JOIN outcomes second USING(episode) JOIN outcomes first ON first.episode = e.question_group "
      "WHERE e.stage = 'check' ORDER BY second.seq");
  std::vector<QuestionResult> first, second;
  while (query.step()) {
    parse_results({query.text(2), query.text(3), query.text(4), query.text(5), query.text(6)}, &first);
    parse_results({query.text(8), query.text(9), query.text(10), query.text(11), query.text(12)}, &second);
    run->checks.add(parse_episode_kind(query.text(0)), holder_of(query.text(1)), first,
                    holder_of(query.text(7)), second);
  }
}

// Returns the number of episodes of the preflight. Of the verification it takes only what was told after
// record `verified_after`.
int64_t read_episodes(const Database& database, int64_t schema_version, int64_t verified_after,
                      Preflight* preflight, RunData* run) {
  std::map<std::string, Candidate> candidates;
  Statement query(database, episodes_after(schema_version));
  query.bind(int64_t{0});
  EpisodeRow row;
  std::vector<QuestionResult> results;
  int64_t told_of_preflight = 0;
  while (query.step()) {
    read_row(query, &row, &results);
    if (row.stage == name(Stage::kCheck)) continue;
    if (row.stage == name(Stage::kLearn)) {
      if (row.kind == run->kind)
        run->learned.push_back({row.finished, row.reward});
      else
        ++run->learned_of_other_kinds;
      continue;
    }
    const std::vector<uint32_t> questions = parse_list<uint32_t>(query.text(6), "episodes.questions");
    if (questions.size() != results.size()) {
      throw CorruptFile(fmt::format("history {}: episode {} has {} questions and {} results",
                                    database.file().string(), row.episode, questions.size(), results.size()));
    }
    for (size_t i = 0; i < questions.size(); ++i) results[i].question = questions[i];
    if (row.stage == name(Stage::kPreflight)) {
      ++told_of_preflight;
      preflight->add(row.label, results, {row.worker, row.seconds, row.finished});
      continue;
    }
    if (query.integer(16) < verified_after) continue;
    Candidate& candidate = candidates[row.label];
    candidate.samples = row.samples;
    for (const QuestionResult& result : results) candidate.results[result.question] = result;
  }
  add_scores(candidates, run);
  return told_of_preflight;
}

void read_versions(const Database& database, RunData* run) {
  const int64_t count = Statement(database, "SELECT count(*) FROM versions").value();
  Statement query(database, versions_query(database, kEveryKthVersion));
  query.bind(count / RunData::kMostVersions + 1);
  while (query.step()) run->versions.push_back(read_version(query));
  if (run->versions.empty()) return;
  run->recommended = run->versions.back().recommended;
  run->policy_version = run->versions.back().version;
}

// The same rule as Core's: a number of episodes ends a target.
void follow(const RunControlled& controlled, RunData* run) {
  switch (controlled.action) {
    case ControlAction::kPause:
    case ControlAction::kResume:
      run->paused = controlled.action == ControlAction::kPause;
      return;
    case ControlAction::kTarget:
      run->target_reward = controlled.reward;
      return;
    case ControlAction::kStop:
    case ControlAction::kEpisodes:
      run->target_reward = 0;
      run->until_settled = run->until_settled && by_run_until_settled(controlled.by);
      run->settled = controlled.by == kBySettled;
      run->episodes_wanted = controlled.episodes;
      return;
    case ControlAction::kBounds:
      run->bounds = controlled.bounds;
      return;
    case ControlAction::kLeaseSeconds:
      run->lease_ms = 1000 * controlled.lease_seconds;
      return;
    case ControlAction::kMaxAttempts:
      run->max_attempts = controlled.max_attempts;
      return;
    case ControlAction::kHeldoutQuestions:
      run->spec.mutable_task()->set_heldout_questions(static_cast<uint32_t>(controlled.heldout_questions));
      return;
    case ControlAction::kCordon:
    case ControlAction::kUncordon:
      return;  // says nothing of the run
  }
}

// Returns the number of the last record that wants another number of episodes, 0 without one. A verification
// before it was of a run that has learned on since.
int64_t read_control(const Database& database, RunData* run) {
  int64_t last_wish = 0;
  Statement query(database, "SELECT at_ms, action, value, who, seq FROM steering ORDER BY seq");
  while (query.step()) {
    RunControlled controlled{.action = parse_control_action(query.text(1)),
                             .by = std::string(query.text(3)),
                             .at = from_ms(query.integer(0))};
    parse_control_value(query.text(2), &controlled);
    follow(controlled, run);
    if (controlled.action == ControlAction::kEpisodes) last_wish = query.integer(4);
    run->controls.push_back(std::move(controlled));
  }
  return last_wish;
}

void read_given_up(const Database& database, int64_t schema_version, RunData* run) {
  Statement query(
      database,
      schema_version >= 2
          ? "SELECT episode, kind, reason, at_ms FROM set_asides WHERE kind != 'withdrawn' ORDER BY seq"
          : "SELECT episode, 'exhausted', '', at_ms FROM set_asides ORDER BY seq");
  while (query.step()) {
    run->given_up.push_back({{query.integer(0)},
                             parse_give_up(query.text(1)),
                             std::string(query.text(2)),
                             from_ms(query.integer(3))});
  }
}

int64_t given_up_in(const Database& database, Stage stage) {
  Statement query(database,
                  "SELECT count(*) FROM set_asides s JOIN episodes e USING(episode) WHERE e.stage = ?");
  query.bind(name(stage));
  query.step();
  return query.integer(0);
}

// Episodes of a stage that are neither told nor given up, of those asked after record `after`.
int64_t open_in(const Database& database, Stage stage, int64_t after) {
  Statement query(database,
                  "SELECT count(*) FROM episodes e WHERE stage = ? AND seq > ? AND NOT EXISTS"
                  "(SELECT 1 FROM outcomes o WHERE o.episode = e.episode) AND NOT EXISTS"
                  "(SELECT 1 FROM set_asides s WHERE s.episode = e.episode)");
  query.bind(name(stage)).bind(after);
  query.step();
  return query.integer(0);
}

// How far the verification after record `after` has come.
struct Verification {
  int64_t asked = 0;      // episodes
  int64_t questions = 0;  // that the last batch ends with
};
Verification read_verification(const Database& database, int64_t after) {
  Statement query(database,
                  "SELECT count(*) OVER (), questions FROM episodes WHERE stage = 'verify' AND seq > ? "
                  "ORDER BY seq DESC LIMIT 1");
  query.bind(after);
  if (!query.step()) return {};
  const auto last = parse_list<uint32_t>(query.text(1), "episodes.questions");
  return {query.integer(0), last.empty() ? 0 : int64_t{last.back()} + 1};
}

// The same rule as Plan's: preflight and verification end when each of their episodes is told or given up,
// learning when the wanted number of episodes was learned from and none is open.
std::string stage_of(const Database& database, const Preflight& preflight, int64_t preflight_told,
                     int64_t verified_after, RunData* run) {
  if (preflight_told + given_up_in(database, Stage::kPreflight) < preflight_episodes(run->spec))
    return std::string(name(Stage::kPreflight));
  if (!run->spec.ignore_preflight() && !preflight.stop_reason().empty())
    return std::string(name(Stage::kFinished));
  const int64_t learned = std::ssize(run->learned) + run->learned_of_other_kinds;
  if (learned < run->episodes_wanted || open_in(database, Stage::kLearn, 0) > 0)
    return std::string(name(Stage::kLearn));
  const Verification verification = read_verification(database, verified_after);
  wire::TaskSpec& task = *run->spec.mutable_task();
  // Batches that have begun are finished, however few questions are wanted by then.
  task.set_heldout_questions(
      std::max(task.heldout_questions(), static_cast<uint32_t>(verification.questions)));
  const bool all_asked = verification.asked % kVerifiedSchedules == 0 &&
                         verification.questions == int64_t{task.heldout_questions()};
  const bool finished = all_asked && open_in(database, Stage::kVerify, verified_after) == 0;
  return std::string(name(finished ? Stage::kFinished : Stage::kVerify));
}

void begin_with_spec(RunData* run) {
  run->episodes_wanted = run->spec.episodes();
  run->until_settled = run->spec.until_settled();
  run->bounds = run->spec.policy().bounds();
  run->lease_ms = run->spec.lease_ms();
  run->max_attempts = run->spec.max_attempts();
}

void require_file(const std::filesystem::path& run_directory, const std::filesystem::path& file) {
  if (std::filesystem::exists(file)) return;
  throw NotFound(
      fmt::format("{} is no run directory: {} does not exist", run_directory.string(), file.string()));
}

std::filesystem::path existing_history(const std::filesystem::path& run_directory) {
  require_file(run_directory, history_path(run_directory));
  return history_path(run_directory);
}

}  // namespace

RunData read_settings(const std::filesystem::path& run_directory) {
  RunData run;
  run.spec = wire::read_spec(spec_path(run_directory));
  require_learner(run.spec, run_directory);
  begin_with_spec(&run);
  if (!std::filesystem::exists(history_path(run_directory))) return run;
  Database database(history_path(run_directory), Database::Mode::kReadOnly);
  if (check_schema_version(database) >= 2) read_control(database, &run);
  return run;
}

RunData read_run(const std::filesystem::path& run_directory) {
  for (const auto& file : {spec_path(run_directory), history_path(run_directory)})
    require_file(run_directory, file);
  RunData run;
  run.spec = wire::read_spec(spec_path(run_directory));
  require_learner(run.spec, run_directory);
  try {
    run.kind = parse_reward_kind(run.spec.reward_kind());
  } catch (const InvalidArgument& error) {
    throw CorruptFile(fmt::format("{}: {}", spec_path(run_directory).string(), error.what()));
  }
  Database database(history_path(run_directory), Database::Mode::kReadOnly);
  Transaction snapshot(&database, "BEGIN");
  const int64_t schema_version = check_schema_version(database);
  begin_with_spec(&run);
  const int64_t last_wish = schema_version >= 2 ? read_control(database, &run) : 0;
  Preflight preflight(run.spec);
  const int64_t preflight_told = read_episodes(database, schema_version, last_wish, &preflight, &run);
  read_versions(database, &run);
  read_checks(database, &run);
  read_given_up(database, schema_version, &run);
  run.counters = read_counters(database);
  run.elapsed_s = Statement(database, "SELECT sum(last_ms - started_ms) FROM epochs").value() / 1000.0;
  run.stage = stage_of(database, preflight, preflight_told, last_wish, &run);
  if (preflight_episodes(run.spec) > 0)
    run.preflight = preflight.describe(run.stage != name(Stage::kPreflight));
  return run;
}

struct RunFollower::Impl {
  Database database;
  int64_t schema_version = 0;
  int64_t last_seq = 0;  // of the last outcome handed over
  int64_t last_version = -1;
};

RunFollower::RunFollower(const std::filesystem::path& run_directory)
    : impl_(new Impl{.database = {existing_history(run_directory), Database::Mode::kReadOnly}}) {
  impl_->schema_version = check_schema_version(impl_->database);
}

RunFollower::~RunFollower() = default;

Timestamp RunFollower::started() const {
  return from_ms(Statement(impl_->database, "SELECT at_ms FROM versions WHERE version = 0").value());
}

void RunFollower::new_episodes(const std::function<void(const EpisodeRow&)>& visit) {
  Statement query(impl_->database, episodes_after(impl_->schema_version));
  query.bind(impl_->last_seq);
  EpisodeRow row;
  std::vector<QuestionResult> results;
  int64_t seq = impl_->last_seq;
  while (query.step()) {
    read_row(query, &row, &results);
    seq = query.integer(16);
    visit(row);
  }
  impl_->last_seq = seq;
}

void RunFollower::new_versions(const std::function<void(const VersionRow&)>& visit) {
  Statement query(impl_->database, versions_query(impl_->database, kVersionsAfter));
  query.bind(impl_->last_version);
  int64_t version = impl_->last_version;
  while (query.step()) {
    const VersionRow row = read_version(query);
    version = row.version;
    visit(row);
  }
  impl_->last_version = version;
}

const ScoreRow* find_score(const RunData& run, std::string_view label) {
  const auto found = std::ranges::find(run.scores, label, &ScoreRow::label);
  return found == run.scores.end() ? nullptr : &*found;
}

}  // namespace allot::aggregator
