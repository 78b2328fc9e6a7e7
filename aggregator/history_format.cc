#include "aggregator/history_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <limits>
#include <type_traits>
#include <utility>

#include "aggregator/history_chain.h"
#include "base/error.h"
#include "policy/bounds.h"
#include "wire/messages.pb.h"

namespace allot::aggregator {
namespace {

constexpr std::array<std::pair<AckVerdict, std::string_view>, 3> kVerdicts{
    {{AckVerdict::kAccepted, "accepted"}, {AckVerdict::kLate, "late"}, {AckVerdict::kStale, "stale"}}};
constexpr std::array<std::pair<LeaseEnd, std::string_view>, 8> kLeaseEndWords{
    {{LeaseEnd::kExpired, "expired"},
     {LeaseEnd::kReleased, "released"},
     {LeaseEnd::kFailed, "failed"},
     {LeaseEnd::kRejected, "rejected"},
     {LeaseEnd::kSuperseded, "superseded"},
     {LeaseEnd::kPreempted, "preempted"},
     {LeaseEnd::kCrashed, "crashed"},
     {LeaseEnd::kWithdrawn, "withdrawn"}}};
constexpr std::array<std::pair<GiveUp, std::string_view>, 3> kGiveUps{
    {{GiveUp::kExhausted, "exhausted"}, {GiveUp::kPoisoned, "poisoned"}, {GiveUp::kWithdrawn, "withdrawn"}}};
constexpr std::array<std::pair<ControlAction, std::string_view>, 11> kControlActions{
    {{ControlAction::kPause, "pause"},
     {ControlAction::kResume, "resume"},
     {ControlAction::kStop, "stop"},
     {ControlAction::kTarget, "target"},
     {ControlAction::kEpisodes, "episodes"},
     {ControlAction::kBounds, "bounds"},
     {ControlAction::kLeaseSeconds, "lease-seconds"},
     {ControlAction::kMaxAttempts, "max-attempts"},
     {ControlAction::kCordon, "cordon"},
     {ControlAction::kUncordon, "uncordon"},
     {ControlAction::kHeldoutQuestions, "heldout-questions"}}};
constexpr std::array<std::pair<Finish, char>, 3> kFinishes{
    {{Finish::kEos, 'e'}, {Finish::kStop, 's'}, {Finish::kLength, 'l'}}};

// Returns where the number that starts at `at` ends; null when there is no number or it does not fit.
const char* parse_number(const char* at, const char* end, double* value) {
  const auto [next, error] = std::from_chars(at, end, *value);
  return error == std::errc{} ? next : nullptr;
}

// Written by hand: a restart reads eighty such numbers per episode, and std::from_chars takes three times as
// long.
template <std::integral Integer>
const char* parse_number(const char* at, const char* end, Integer* value) {
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<Integer>::max());
  constexpr int kMostDigits = 18;  // more than an Integer has, and no sum of so many overflows
  static_assert(std::numeric_limits<Integer>::digits10 < kMostDigits - 1);
  const bool negative = std::is_signed_v<Integer> && at != end && *at == '-';
  if (negative) ++at;
  const char* const first = at;
  uint64_t number = 0;
  for (; at != end; ++at) {
    const unsigned digit = static_cast<unsigned char>(*at) - unsigned{'0'};
    if (digit > 9) break;
    number = 10 * number + digit;
  }
  if (at == first || at - first > kMostDigits || number > kMost + (negative ? 1 : 0)) return nullptr;
  *value = static_cast<Integer>(negative ? 0 - number : number);
  return at;
}

// By std::to_chars, because an episode stores seventy such numbers and fmt::join takes three times as long.
template <std::integral Integer>
std::string joined(const std::vector<Integer>& values) {
  constexpr size_t kMostDigits = std::numeric_limits<Integer>::digits10 + 2;  // with a sign
  std::string text(values.size() * (kMostDigits + 1), '\0');
  char* at = text.data();
  for (const Integer value : values) {
    if (at != text.data()) *at++ = ',';
    at = std::to_chars(at, at + kMostDigits, value).ptr;
  }
  text.resize(static_cast<size_t>(at - text.data()));
  return text;
}

template <class Table, class Key>
auto word_of(const Table& table, Key key) {
  for (const auto& [value, word] : table) {
    if (value == key) return word;
  }
  throw StorageError(fmt::format("the history has no word for value {}", static_cast<int>(key)));
}

template <class Table, class Word>
auto value_of(const Table& table, Word text, const char* what) {
  for (const auto& [value, word] : table) {
    if (word == text) return value;
  }
  throw CorruptFile(fmt::format("the history holds {} '{}', which this release does not know", what, text));
}

// The tables of version 1, and what each later version adds. A new history goes through all these steps, so
// it is the same as an old one that was upgraded.
const char* const kHistorySchema1 = R"sql(
CREATE TABLE epochs(
  epoch INTEGER PRIMARY KEY, started_ms INTEGER NOT NULL, last_ms INTEGER NOT NULL, build TEXT NOT NULL) STRICT;
CREATE TABLE episodes(
  episode INTEGER PRIMARY KEY, seq INTEGER NOT NULL, asked_ms INTEGER NOT NULL, stage TEXT NOT NULL, label TEXT NOT NULL,
  question_group INTEGER NOT NULL, samples TEXT NOT NULL, questions TEXT NOT NULL, sampling_seed INTEGER NOT NULL,
  policy_version INTEGER NOT NULL, log_prob REAL NOT NULL) STRICT;
CREATE TABLE leases(
  lease INTEGER PRIMARY KEY, seq INTEGER NOT NULL, granted_ms INTEGER NOT NULL,
  episode INTEGER NOT NULL REFERENCES episodes, attempt INTEGER NOT NULL, worker TEXT NOT NULL) STRICT;
CREATE TABLE lease_ends(
  seq INTEGER PRIMARY KEY, lease INTEGER NOT NULL REFERENCES leases, ended_ms INTEGER NOT NULL, ending TEXT NOT NULL,
  reason TEXT NOT NULL) STRICT;
CREATE TABLE outcomes(
  seq INTEGER PRIMARY KEY, episode INTEGER NOT NULL UNIQUE REFERENCES episodes, lease INTEGER NOT NULL REFERENCES leases,
  told_ms INTEGER NOT NULL, verdict TEXT NOT NULL, told_version INTEGER NOT NULL, worker TEXT NOT NULL,
  seconds REAL NOT NULL, correct TEXT NOT NULL, finish TEXT NOT NULL, prompt_tokens TEXT NOT NULL,
  output_tokens TEXT NOT NULL) STRICT;
CREATE TABLE set_asides(
  seq INTEGER PRIMARY KEY, episode INTEGER NOT NULL UNIQUE REFERENCES episodes, at_ms INTEGER NOT NULL) STRICT;
CREATE TABLE versions(
  version INTEGER PRIMARY KEY, seq INTEGER NOT NULL, at_ms INTEGER NOT NULL, shares TEXT NOT NULL,
  recommended TEXT NOT NULL, entropy REAL NOT NULL) STRICT;
CREATE TABLE counters(name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
PRAGMA user_version = 1;
)sql";

const char* const kHistorySchema2 = R"sql(
ALTER TABLE set_asides ADD COLUMN kind TEXT NOT NULL DEFAULT 'exhausted';
ALTER TABLE set_asides ADD COLUMN reason TEXT NOT NULL DEFAULT '';
CREATE TABLE kept_answers(
  seq INTEGER PRIMARY KEY, episode INTEGER NOT NULL REFERENCES episodes, lease INTEGER NOT NULL REFERENCES leases,
  kept_ms INTEGER NOT NULL, worker TEXT NOT NULL, seconds REAL NOT NULL, questions TEXT NOT NULL, correct TEXT NOT NULL,
  finish TEXT NOT NULL, prompt_tokens TEXT NOT NULL, output_tokens TEXT NOT NULL) STRICT;
CREATE TABLE steering(
  seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, action TEXT NOT NULL, value TEXT NOT NULL, who TEXT NOT NULL) STRICT;
PRAGMA user_version = 2;
)sql";

const char* const kHistorySchema3 = R"sql(
ALTER TABLE episodes ADD COLUMN kind TEXT NOT NULL DEFAULT 'answers';
ALTER TABLE outcomes ADD COLUMN score TEXT;
ALTER TABLE kept_answers ADD COLUMN score TEXT;
ALTER TABLE versions ADD COLUMN layer_name TEXT NOT NULL DEFAULT 'share';
ALTER TABLE versions ADD COLUMN scalars TEXT NOT NULL DEFAULT '';
ALTER TABLE versions ADD COLUMN digest TEXT NOT NULL DEFAULT '';
PRAGMA user_version = 3;
)sql";

const char* const kHistorySchema4 = R"sql(
CREATE TABLE chain(seq INTEGER PRIMARY KEY, digest BLOB NOT NULL) STRICT;
ALTER TABLE epochs ADD COLUMN last_seq INTEGER;
ALTER TABLE epochs ADD COLUMN counters_digest TEXT;
ALTER TABLE epochs ADD COLUMN seal TEXT;
PRAGMA user_version = 4;
)sql";

}  // namespace

void bring_up_to_date(Database* database) {
  int64_t version = Statement(*database, "PRAGMA user_version").value();
  if (version == kHistorySchemaVersion) return;
  Transaction transaction(database, "BEGIN IMMEDIATE");
  if (Statement(*database, "SELECT count(*) FROM sqlite_schema").value() == 0) {
    database->execute(kHistorySchema1);
    version = 1;
  }
  if (version < 2) database->execute(kHistorySchema2);
  if (version < 3) database->execute(kHistorySchema3);
  if (version < 4) {
    database->execute(kHistorySchema4);
    begin_chain(database);
  }
  transaction.commit();
}

int64_t check_schema_version(const Database& database) {
  const int64_t found = Statement(database, "PRAGMA user_version").value();
  if (found < 1 || found > kHistorySchemaVersion) {
    throw Mismatch(fmt::format(
        "history {} has schema version {}, this release reads versions 1 to {}; use the release that "
        "wrote it or start a new run",
        database.file().string(), found, kHistorySchemaVersion));
  }
  return found;
}

// Skips a name that this release does not know: it is a counter of a later release.
wire::Counters read_counters(const Database& database) {
  wire::Counters counters;
  for (const auto& [name, value] : stored_counters(database)) {
    const auto* field = wire::Counters::descriptor()->FindFieldByName(name);
    if (field != nullptr) wire::Counters::GetReflection()->SetInt64(&counters, field, value);
  }
  return counters;
}

std::string list_text(const std::vector<int32_t>& values) {
  return joined(values);
}
std::string list_text(const std::vector<uint32_t>& values) {
  return joined(values);
}
std::string list_text(const std::vector<double>& values) {
  return fmt::format("{}", fmt::join(values, ","));
}

template <class T>
void parse_list(std::string_view text, std::string_view where, std::vector<T>* values) {
  // Each number but the last takes two characters at least.
  values->resize((text.size() + 1) / 2);
  T* into = values->data();
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  while (at != end) {
    T value{};
    const char* const next = parse_number(at, end, &value);
    const bool separated = next != nullptr && (next == end || (*next == ',' && next + 1 != end));
    if (!separated) {
      throw CorruptFile(
          fmt::format("{} of the history is no list of numbers: '{}'", where, text.substr(0, 100)));
    }
    *into++ = value;
    at = next == end ? end : next + 1;
  }
  values->resize(static_cast<size_t>(into - values->data()));
}

template <class T>
std::vector<T> parse_list(std::string_view text, std::string_view where) {
  std::vector<T> values;
  parse_list(text, where, &values);
  return values;
}
template void parse_list<int32_t>(std::string_view, std::string_view, std::vector<int32_t>*);
template void parse_list<uint32_t>(std::string_view, std::string_view, std::vector<uint32_t>*);
template void parse_list<double>(std::string_view, std::string_view, std::vector<double>*);
template std::vector<int32_t> parse_list<int32_t>(std::string_view, std::string_view);
template std::vector<uint32_t> parse_list<uint32_t>(std::string_view, std::string_view);
template std::vector<double> parse_list<double>(std::string_view, std::string_view);

namespace {

bool is_entropy_alone(const policy::Description& described) {
  return described.scalars.size() == 1 && described.scalars[0].name == "entropy";
}

}  // namespace

std::string scalars_text(const policy::Description& described) {
  if (is_entropy_alone(described)) return "";
  if (described.scalars.empty()) return "none";
  std::string text;
  for (const auto& scalar : described.scalars) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", scalar.name, scalar.value);
  }
  return text;
}

void parse_scalars(std::string_view text, double entropy, policy::Description* described) {
  // Assigned in place, because a restart gets here for every version.
  if (text.empty()) {
    described->scalars.resize(1);
    described->scalars[0].name = "entropy";
    described->scalars[0].value = entropy;
    return;
  }
  described->scalars.clear();
  if (text == "none") return;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at != end;) {
    const char* const equals = std::find(at, end, '=');
    double value = 0;
    const char* const next = equals == end ? nullptr : parse_number(equals + 1, end, &value);
    if (next == nullptr || equals == at || (next != end && (*next != ',' || next + 1 == end))) {
      throw CorruptFile(fmt::format("versions.scalars of the history is no list of name=number: '{}'", text));
    }
    described->scalars.push_back({std::string(at, equals), value});
    at = next == end ? end : next + 1;
  }
}

std::string digest_text(const std::optional<uint64_t>& digest) {
  return digest ? fmt::format("{:016x}", *digest) : "";
}

std::optional<uint64_t> parse_digest(std::string_view text) {
  if (text.empty()) return std::nullopt;
  uint64_t digest = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), digest, 16);
  if (error != std::errc{} || end != text.data() + text.size() || text.size() != 16) {
    throw CorruptFile(
        fmt::format("versions.digest of the history is '{}'; 16 hexadecimal digits are expected", text));
  }
  return digest;
}

std::string_view verdict_text(AckVerdict verdict) {
  return word_of(kVerdicts, verdict);
}
AckVerdict parse_verdict(std::string_view text) {
  return value_of(kVerdicts, text, "verdict");
}
std::string_view lease_end_text(LeaseEnd how) {
  return word_of(kLeaseEndWords, how);
}
LeaseEnd parse_lease_end(std::string_view text) {
  return value_of(kLeaseEndWords, text, "lease ending");
}

Stage parse_stage(std::string_view text) {
  for (const Stage stage :
       {Stage::kPreflight, Stage::kLearn, Stage::kVerify, Stage::kCheck, Stage::kEvaluate}) {
    if (name(stage) == text) return stage;
  }
  throw CorruptFile(
      fmt::format("the history holds an episode of stage '{}', which this release does not know", text));
}

std::string_view give_up_text(GiveUp kind) {
  return word_of(kGiveUps, kind);
}
GiveUp parse_give_up(std::string_view text) {
  return value_of(kGiveUps, text, "kind of giving up");
}
RewardKind parse_episode_kind(std::string_view text) {
  try {
    return parse_reward_kind(text);
  } catch (const InvalidArgument& error) {
    throw CorruptFile(fmt::format("an episode of the history: {}", error.what()));
  }
}
std::string_view control_action_text(ControlAction action) {
  return word_of(kControlActions, action);
}
ControlAction parse_control_action(std::string_view text) {
  return value_of(kControlActions, text, "control action");
}

namespace {

bool are_bounds(std::string_view text) {
  try {
    (void)policy::parse_bounds(text);
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

}  // namespace

std::string control_value(const RunControlled& controlled) {
  switch (controlled.action) {
    case ControlAction::kStop:
    case ControlAction::kEpisodes:
      return std::to_string(controlled.episodes);
    case ControlAction::kTarget:
      return fmt::format("{}", controlled.reward);
    case ControlAction::kBounds:
      return controlled.bounds;
    case ControlAction::kLeaseSeconds:
      return std::to_string(controlled.lease_seconds);
    case ControlAction::kMaxAttempts:
      return std::to_string(controlled.max_attempts);
    case ControlAction::kCordon:
    case ControlAction::kUncordon:
      return controlled.worker;
    case ControlAction::kHeldoutQuestions:
      return std::to_string(controlled.heldout_questions);
    case ControlAction::kPause:
    case ControlAction::kResume:
      break;
  }
  return "";
}

void parse_control_value(std::string_view text, RunControlled* controlled) {
  const auto read = [&](auto* value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
    return error == std::errc{} && end == text.data() + text.size();
  };
  bool good = false;
  switch (controlled->action) {
    case ControlAction::kStop:
    case ControlAction::kEpisodes:
      good = read(&controlled->episodes) && controlled->episodes >= 0;
      break;
    case ControlAction::kTarget:
      good = read(&controlled->reward) && controlled->reward >= 0 && std::isfinite(controlled->reward);
      break;
    case ControlAction::kBounds:
      controlled->bounds = text;
      good = are_bounds(text);
      break;
    case ControlAction::kLeaseSeconds:
      good = read(&controlled->lease_seconds) && controlled->lease_seconds >= 1;
      break;
    case ControlAction::kMaxAttempts:
      good = read(&controlled->max_attempts) && controlled->max_attempts >= 1;
      break;
    case ControlAction::kCordon:
    case ControlAction::kUncordon:
      controlled->worker = text;
      good = !text.empty();
      break;
    case ControlAction::kHeldoutQuestions:
      good = read(&controlled->heldout_questions) && controlled->heldout_questions >= 1;
      break;
    case ControlAction::kPause:
    case ControlAction::kResume:
      good = text.empty();
      break;
  }
  if (!good) {
    throw CorruptFile(fmt::format(
        "the history holds the control '{}' with value '{}'; stop and episodes have a "
        "number of episodes, target a mean reward of at least 0, bounds LAYERS:RANGE,…, "
        "lease-seconds, max-attempts and heldout-questions a number of at least 1, cordon and uncordon the "
        "name of a worker, pause and resume nothing",
        control_action_text(controlled->action), text));
  }
}

namespace {

// In upper case where no answer could be found in the reply.
constexpr char kToUpper = 'E' - 'e';

char finish_letter(const QuestionResult& result) {
  const char letter = word_of(kFinishes, result.finish);
  return result.no_answer ? static_cast<char>(letter + kToUpper) : letter;
}

struct FinishLetter {
  bool known = false;
  Finish finish = Finish::kEos;
  bool no_answer = false;
};

// [letter]; a table, because a restart reads a letter for each answer.
constexpr auto kFinishLetters = [] {
  std::array<FinishLetter, 128> letters{};
  for (const auto& [finish, letter] : kFinishes) {
    letters[static_cast<size_t>(letter)] = {true, finish, false};
    letters[static_cast<size_t>(letter + kToUpper)] = {true, finish, true};
  }
  return letters;
}();

FinishLetter read_finish_letter(char letter) {
  const auto place = static_cast<unsigned char>(letter);
  if (place < kFinishLetters.size() && kFinishLetters[place].known) return kFinishLetters[place];
  throw CorruptFile(fmt::format("the history holds finish '{}', which this release does not know", letter));
}

}  // namespace

ResultColumns result_columns(const std::vector<QuestionResult>& results) {
  ResultColumns columns;
  std::vector<int32_t> prompt_tokens, output_tokens;
  bool graded = false;
  for (const QuestionResult& result : results) {
    columns.correct += result.score == 1 ? '1' : '0';
    graded = graded || (result.score != 0 && result.score != 1);
    columns.finish += finish_letter(result);
    prompt_tokens.push_back(result.prompt_tokens);
    output_tokens.push_back(result.output_tokens);
  }
  columns.prompt_tokens = list_text(prompt_tokens);
  columns.output_tokens = list_text(output_tokens);
  if (graded) {
    std::vector<double> scores;
    for (const QuestionResult& result : results) scores.push_back(result.score);
    columns.score = list_text(scores);
  }
  return columns;
}

void parse_results(const ResultTexts& texts, std::vector<QuestionResult>* results) {
  const auto& [correct, finish, prompt_tokens, output_tokens, score] = texts;
  // Reused by the next call, because a restart gets here for every episode.
  thread_local std::vector<int32_t> prompts, outputs;
  thread_local std::vector<double> scores;
  parse_list(prompt_tokens, "outcomes.prompt_tokens", &prompts);
  parse_list(output_tokens, "outcomes.output_tokens", &outputs);
  parse_list(score, "outcomes.score", &scores);
  if (finish.size() != correct.size() || prompts.size() != correct.size() ||
      outputs.size() != correct.size() ||
      !std::ranges::all_of(correct, [](char c) { return c == '0' || c == '1'; })) {
    throw CorruptFile(fmt::format(
        "an outcome of the history has {} entries in correct ('{}'), {} in finish, {} in prompt_tokens "
        "and {} in output_tokens; one 0 or 1 and one each per question is expected",
        correct.size(), correct, finish.size(), prompts.size(), outputs.size()));
  }
  if (!scores.empty() && scores.size() != correct.size()) {
    throw CorruptFile(
        fmt::format("an outcome of the history has {} scores ('{}') for {} questions; none, or "
                    "one per question is expected",
                    scores.size(), score, correct.size()));
  }
  results->resize(correct.size());
  for (size_t i = 0; i < results->size(); ++i) {
    const FinishLetter letter = read_finish_letter(finish[i]);
    (*results)[i] = {.question = 0,
                     .score = correct[i] == '1' ? 1.0 : 0.0,
                     .finish = letter.finish,
                     .prompt_tokens = prompts[i],
                     .output_tokens = outputs[i],
                     .no_answer = letter.no_answer};
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    if ((scores[i] == 1) != (correct[i] == '1') || !std::isfinite(scores[i])) {
      throw CorruptFile(
          fmt::format("an outcome of the history has score {} where correct has {}; 1 is "
                      "expected where correct has 1, and a finite number there alone",
                      scores[i], correct[i]));
    }
    (*results)[i].score = scores[i];
  }
}

}  // namespace allot::aggregator
