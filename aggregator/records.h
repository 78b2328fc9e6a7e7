// What happened in a run, one struct per kind of event. The history stores them in order. The core's
// state follows from them alone: applying a stored sequence to a fresh core gives the state of the core
// that wrote it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "aggregator/lease_table.h"
#include "base/clock.h"
#include "base/strong_id.h"
#include "episode/episode.h"
#include "episode/question_result.h"
#include "policy/policy.h"

namespace allot::aggregator {

// The numbers go into sampling seeds, so they stay; the preflight is the first stage. A run is never in the
// stage kCheck: episodes that check others (cross_check.h) are asked beside those of its stages.
enum class Stage : uint8_t {
  kLearn = 0,
  kVerify = 1,
  kFinished = 2,
  kPreflight = 3,
  kCheck = 4,
  kEvaluate = 5
};
std::string_view name(Stage stage);  // "learn", "verify", "finished", "preflight", "check", "evaluate"
// The data file whose questions a stage asks.
Split split_of(Stage stage);

// An episode and why it is asked. Episodes are numbered in the order of asking: those of the preflight, those
// of the policy's proposals in their order, those of the verification; then, where a finished run learned on,
// the next proposals and another verification. Checks are numbered among them.
struct PlannedEpisode : Episode {
  Stage stage = Stage::kLearn;
  // Of a measured schedule: "uniform", "learned", "dense", in an evaluation its name there; of a check the
  // stage of the checked episode; empty while learning.
  std::string label;
  // Learning: the proposal's group; of a check the number of the checked episode; of an evaluation the
  // repeat; else that of the question batch.
  int64_t group = 0;
  int64_t policy_version = 0;  // updates the policy had made when it drew the schedule
  double log_prob = 0;
  friend bool operator==(const PlannedEpisode&, const PlannedEpisode&) = default;
};

struct EpisodeAsked {
  PlannedEpisode episode;
  Timestamp at;
  friend bool operator==(const EpisodeAsked&, const EpisodeAsked&) = default;
};

struct LeaseGranted {
  LeaseId lease;
  EpisodeId episode;
  int attempt = 1;
  std::string worker;
  Timestamp at;
  friend bool operator==(const LeaseGranted&, const LeaseGranted&) = default;
};

struct LeaseEnded {
  LeaseId lease;
  LeaseEnd how = LeaseEnd::kExpired;
  std::string reason;  // for a failed or rejected lease
  Timestamp at;
  friend bool operator==(const LeaseEnded&, const LeaseEnded&) = default;
};

// Answers to some of an open episode's questions, kept from a lease that was given back before the rest was
// answered. A later lease asks only the missing ones.
struct AnswersKept {
  EpisodeId episode;
  LeaseId lease;
  std::vector<QuestionResult> results;  // in the order of Episode::questions; only new ones
  std::string worker;
  double seconds = 0;
  Timestamp at;
  friend bool operator==(const AnswersKept&, const AnswersKept&) = default;
};

// The one stored result of an episode; it includes answers that were kept before.
struct EpisodeTold {
  EpisodeId episode;
  LeaseId lease;
  AckVerdict verdict = AckVerdict::kAccepted;  // or kLate, kStale
  // One per question of Episode::questions, in their order. When read from a history, which does not repeat
  // the questions' numbers, they carry no numbers.
  std::vector<QuestionResult> results;
  int64_t told_version = 0;  // updates the policy had made before it
  std::string worker;
  double seconds = 0;
  Timestamp at;
  friend bool operator==(const EpisodeTold&, const EpisodeTold&) = default;
};

enum class GiveUp : uint8_t {
  kExhausted,  // its attempts are used up
  kPoisoned,   // and it failed on different workers, so most likely the episode is at fault
  kWithdrawn,  // nobody wants its result any more
};

struct EpisodeGivenUp {
  EpisodeId episode;
  GiveUp kind = GiveUp::kExhausted;
  std::string reason;  // how its attempts ended, or why nobody wants it
  Timestamp at;
  friend bool operator==(const EpisodeGivenUp&, const EpisodeGivenUp&) = default;
};

enum class ControlAction : uint8_t {
  kPause,
  kResume,
  kStop,
  kTarget,
  kEpisodes,
  kBounds,
  kLeaseSeconds,
  kMaxAttempts,
  kCordon,
  kUncordon,
  kHeldoutQuestions
};

// Who asks where the run itself controls its learning; no operator goes by these names.
inline constexpr std::string_view kByOutlook =
    "until settled";                                       // more episodes, since the learner has an outlook
inline constexpr std::string_view kBySettled = "settled";  // less than the gain floor is left to gain
inline bool by_run_until_settled(std::string_view by) {
  return by == kByOutlook || by == kBySettled;
}

// A command of an operator, or of the run itself when it reached its target or settled.
struct RunControlled {
  ControlAction action = ControlAction::kPause;
  int64_t episodes = 0;       // kStop and kEpisodes: learning episodes wanted from now on
  double reward = 0;          // kTarget: mean of the recent learning episodes that ends the learning
  std::string bounds = {};    // kBounds: what schedules keep from now on (policy/bounds.h)
  int64_t lease_seconds = 0;  // kLeaseSeconds: of leases that are granted or renewed from now on
  int32_t max_attempts = 0;   // kMaxAttempts: at one episode before it is given up
  std::string worker = {};  // kCordon and kUncordon: the worker, or the holder of all workers, that is meant
  int64_t heldout_questions = 0;  // kHeldoutQuestions: that the run is verified on from now on
  std::string by;
  Timestamp at;
  friend bool operator==(const RunControlled&, const RunControlled&) = default;
};

// The policy after an update (or version 0, before the first).
struct VersionReached {
  int64_t version = 0;
  policy::Description described;
  std::vector<int32_t> recommended;  // [layers]
  std::optional<uint64_t> digest;    // Policy::digest(); empty in a history from before schema version 3
  Timestamp at;
  friend bool operator==(const VersionReached&, const VersionReached&) = default;
};

using Record = std::variant<EpisodeAsked, LeaseGranted, LeaseEnded, EpisodeTold, EpisodeGivenUp,
                            VersionReached, AnswersKept, RunControlled>;

// A status lists only the most recent episodes that were given up, at most this many.
inline constexpr size_t kGivenUpShown = 20;

}  // namespace allot::aggregator
