// How values are written in the columns of the history: lists as text a person can read in the sqlite3 shell,
// enums as words. Shared by the writer and by read_run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aggregator/records.h"
#include "aggregator/sqlite.h"
#include "wire/messages_fwd.h"

namespace allot::aggregator {

inline constexpr int64_t kHistorySchemaVersion = 4;
// The version that brought the checksum chain (history_chain.h).
inline constexpr int64_t kChainSince = 4;

// Creates the tables (explained in docs/history-schema.md) in an empty file, and adds what is missing to an
// older history, without changing its rows. A file of a later version is left as it is.
void bring_up_to_date(Database* database);

// The file's schema version. Throws Unsupported for one that this release cannot read, naming it and the
// versions that it can read.
int64_t check_schema_version(const Database& database);

wire::Counters read_counters(const Database& database);

// "1,2,3"; doubles in the shortest form that reads back to the same bits. Empty list = empty text.
std::string list_text(const std::vector<int32_t>& values);
std::string list_text(const std::vector<uint32_t>& values);
std::string list_text(const std::vector<double>& values);
// Inverse of list_text for T = int32_t, uint32_t, double. Throws CorruptFile naming `where`.
template <class T>
std::vector<T> parse_list(std::string_view text, std::string_view where);
// The same, but writes into an existing list whose memory is reused.
template <class T>
void parse_list(std::string_view text, std::string_view where, std::vector<T>* values);

// The scalars of a learner as text, "entropy=3.33,step=0.5". An empty text means the entropy alone, which has
// a column of its own; "none" means no scalars.
std::string scalars_text(const policy::Description& described);
// Sets the scalars. Throws CorruptFile.
void parse_scalars(std::string_view text, double entropy, policy::Description* described);
// 16 hexadecimal digits; empty = none. The reverse throws CorruptFile.
std::string digest_text(const std::optional<uint64_t>& digest);
std::optional<uint64_t> parse_digest(std::string_view text);

std::string_view verdict_text(AckVerdict verdict);
AckVerdict parse_verdict(std::string_view text);
std::string_view lease_end_text(LeaseEnd how);
LeaseEnd parse_lease_end(std::string_view text);
Stage parse_stage(std::string_view text);
std::string_view give_up_text(GiveUp kind);
GiveUp parse_give_up(std::string_view text);
RewardKind parse_episode_kind(std::string_view text);
std::string_view control_action_text(ControlAction action);
ControlAction parse_control_action(std::string_view text);

// The value of a control: "500" episodes, a reward "0.65", or nothing.
std::string control_value(const RunControlled& controlled);
// Sets the episodes or the reward, whichever the action has. Throws CorruptFile.
void parse_control_value(std::string_view text, RunControlled* controlled);

// Results of one episode as columns, each with one entry per question: "101", "ees", "231,219,244",
// "52,48,60", "1,0.25,1"; the questions' numbers are not included.
struct ResultColumns {
  std::string correct;  // 1 where the score is 1, else 0
  std::string finish;   // e(os), s(top), l(ength); in upper case where no answer could be found
  std::string prompt_tokens;
  std::string output_tokens;
  std::optional<std::string> score;  // absent: the scores are those in `correct`
};
ResultColumns result_columns(const std::vector<QuestionResult>& results);
struct ResultTexts {
  std::string_view correct, finish, prompt_tokens, output_tokens;
  std::string_view score;  // empty: the scores are those in `correct`
};
// Overwrites `results`, whose memory is reused; the results have no question numbers. Throws CorruptFile.
void parse_results(const ResultTexts& texts, std::vector<QuestionResult>* results);

}  // namespace allot::aggregator
