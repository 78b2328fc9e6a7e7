// The data of a finished or running run, read from its directory without disturbing the aggregator: what
// status, report, export and inspect show.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aggregator/cross_check.h"
#include "aggregator/records.h"
#include "base/clock.h"
#include "wire/messages.pb.h"

namespace allot::aggregator {

// An accepted episode.
struct EpisodeRow {
  int64_t episode = 0;
  std::string stage;  // "preflight", "learn" or "verify"
  std::string label;  // of a measured schedule: "uniform", "learned", "dense"; empty while learning
  int64_t group = 0;
  RewardKind kind = RewardKind::kAnswers;
  std::vector<int32_t> samples;  // empty = dense
  double reward = 0;
  int64_t asked_version = 0;
  int64_t told_version = 0;
  Timestamp finished;
  std::string worker;
  double seconds = 0;
  int64_t output_tokens = 0;
};

// What is kept of each learning episode: only what a curve needs, so a million episodes take 16 MB.
struct LearnedEpisode {
  Timestamp finished;
  double reward = 0;
};

struct VersionRow {
  int64_t version = 0;
  Timestamp at;
  policy::Description described;
  std::vector<int32_t> recommended;  // [layers]
};

// Per-question results of one verified schedule on the held-out questions, in question order.
struct ScoreRow {
  std::string label;
  std::vector<int32_t> samples;  // empty = dense
  std::vector<uint32_t> questions;
  std::vector<double> scores;                // same order
  std::vector<QuestionResult> results = {};  // same order
};

struct RunData {
  // Of the policy versions of a long run only every k-th is kept, so that there are at most this many, and
  // also the last.
  static constexpr int64_t kMostVersions = 4096;

  wire::RunSpec spec;  // as in spec.json, but with the held-out questions of the last control
  RewardKind kind = RewardKind::kAnswers;  // from the spec: what rewards and scores measure
  std::string stage;                       // "preflight", "learn", "verify", "finished"
  int64_t episodes_wanted = 0;             // learning episodes, from the spec or the last control
  std::vector<LearnedEpisode> learned;     // accepted ones of that kind, in the order they were told
  int64_t learned_of_other_kinds = 0;      // accepted ones that a learner wanted measured otherwise
  std::vector<VersionRow> versions;        // of the policy, from 0
  std::vector<ScoreRow> scores;
  std::vector<int32_t> recommended;  // [layers]
  int64_t policy_version = 0;
  wire::Counters counters;
  std::vector<RunControlled> controls;   // what operators asked for, in order; none in a history of version 1
  std::vector<EpisodeGivenUp> given_up;  // in order; without reasons in a history of version 1
  std::optional<wire::Preflight> preflight;  // none where the spec asks for none
  CheckTally checks;                         // of grades that were reported twice
  std::string bounds;                        // of schedules, from the spec or the last control
  int64_t lease_ms = 0;                      // from the spec or the last control
  int32_t max_attempts = 0;                  // from the spec or the last control
  double target_reward = 0;                  // ends the learning, from the last control; 0 = none
  bool until_settled = false;                // as the spec says and no operator has overruled
  bool settled = false;                      // and so the learning ended
  bool paused = false;
  double elapsed_s = 0;

  int64_t episodes_learned() const { return std::ssize(learned) + learned_of_other_kinds; }
};

// Reads `run_directory`/spec.json and history.sqlite, even while an aggregator writes it. Throws NotFound
// when they do not exist and CorruptFile when they contradict their formats.
RunData read_run(const std::filesystem::path& run_directory);

// What the run is at by its spec and its controls alone: none of its episodes and versions is read. A run
// without a history is at its spec.
RunData read_settings(const std::filesystem::path& run_directory);

// The scores of the verified schedule of that label; null when there are none.
const ScoreRow* find_score(const RunData& run, std::string_view label);

// Follows a run as it grows: every row is read once, and only one is in memory at a time, however long
// the run is.
class RunFollower {
 public:
  // Throws NotFound without a history, StorageError or CorruptFile for one that cannot be read.
  explicit RunFollower(const std::filesystem::path& run_directory);
  ~RunFollower();
  RunFollower(const RunFollower&) = delete;
  RunFollower& operator=(const RunFollower&) = delete;

  // When policy version 0 was recorded; the clock's zero before that.
  Timestamp started() const;

  // Hands over the rows that were added since the last call that returned, at first all rows: episodes in the
  // order in which they were told, versions in ascending order. A row is valid only during the call of
  // `visit`. Throws CorruptFile.
  void new_episodes(const std::function<void(const EpisodeRow&)>& visit);
  void new_versions(const std::function<void(const VersionRow&)>& visit);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace allot::aggregator
