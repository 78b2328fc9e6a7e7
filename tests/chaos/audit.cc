#include "tests/chaos/audit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <variant>

#include "aggregator/core.h"
#include "aggregator/history.h"
#include "aggregator/history_check.h"
#include "aggregator/run_directory.h"
#include "aggregator/run_spec.h"
#include "tests/aggregator/replay.h"
#include "tests/aggregator/simulated_runner.h"
#include "wire/spec.h"

namespace allot::chaos {
namespace {

using namespace aggregator;

class Auditor {
 public:
  Auditor(const std::filesystem::path& run, bool hostile, Audit* audit)
      : spec_(wire::read_spec(spec_path(run))),
        history_(read_sqlite_history(history_path(run))),
        hostile_(hostile),
        audit_(audit) {}

  void run() {
    audit_->epochs = history_->epoch();
    audit_->counters = history_->counters();
    history_->replay(
        [this](const Record& record) { std::visit([this](const auto& one) { see(one); }, record); });
    check_completeness();
    check_counters();
    check_policy();
  }

 private:
  template <class... Values>
  void expect(bool holds, fmt::format_string<Values...> what, Values&&... values) {
    if (!holds) audit_->faults.push_back(fmt::format(what, std::forward<Values>(values)...));
  }

  void see(const EpisodeAsked& asked) {
    const PlannedEpisode& episode = asked.episode;
    ++audit_->episodes;
    asked_[episode.id] = episode;
    expected_[episode.id] = simulated_results(episode, spec_.seed());
  }
  void see(const LeaseGranted& granted) {
    ++audit_->leases;
    expect(leases_.insert(granted.lease).second, "lease {} is granted twice", granted.lease.value);
  }
  void see(const LeaseEnded& ended) {
    expect(ended_.insert(ended.lease).second, "lease {} ends twice", ended.lease.value);
    ++endings_[ended.how];
  }
  void see(const EpisodeTold& told) {
    const int64_t number = told.episode.value;
    ++audit_->outcomes;
    audit_->stale += told.verdict == AckVerdict::kStale;
    expect(asked_.contains(told.episode), "episode {} is told and was never asked", number);
    expect(told_.insert(told.episode).second, "episode {} has two outcomes", number);
    expect(numbered(told.results, asked_[told.episode]) == expected_[told.episode],
           "the outcome of episode {} is not the model's", number);
    if (kept_.contains(told.episode)) ++audit_->answered_in_parts;
    tells_by_lease_.insert(told.lease);
    std::string answers;
    for (const QuestionResult& result : told.results) answers += result.score == 1 ? '1' : '0';
    const Episode& episode = asked_[told.episode];
    audit_->tells.push_back(fmt::format("{} [{}] [{}] {}", number, fmt::join(episode.samples, ","),
                                        fmt::join(episode.questions, ","), answers));
  }
  void see(const EpisodeGivenUp& given_up) {
    audit_->given_up += given_up.kind != GiveUp::kWithdrawn;
    expect(given_up_.insert(given_up.episode).second, "episode {} is given up twice", given_up.episode.value);
  }
  void see(const VersionReached&) {}
  void see(const AnswersKept& kept) {
    audit_->answers_kept += std::ssize(kept.results);
    const std::vector<uint32_t>& questions = asked_[kept.episode].questions;
    for (const QuestionResult& result : kept.results) {
      const uint32_t question = result.question;
      const auto place = std::ranges::find(questions, question) - questions.begin();
      expect(place < std::ssize(questions) && result == expected_[kept.episode][static_cast<size_t>(place)],
             "the kept answer to question {} of episode {} is not the model's", question, kept.episode.value);
      expect(kept_[kept.episode].insert(question).second, "question {} of episode {} is kept twice", question,
             kept.episode.value);
    }
  }
  void see(const RunControlled&) {}

  void check_completeness() {
    std::map<Stage, int64_t> used;
    for (const auto& [id, episode] : asked_) {
      const int outcomes = told_.contains(id) + given_up_.contains(id);
      expect(outcomes == 1, "episode {} has {} outcomes, exactly one is expected", id.value, outcomes);
      used[episode.stage] += told_.contains(id);
    }
    expect(used[Stage::kLearn] - audit_->stale == spec_.episodes(),
           "{} learning episodes count, {} were wanted", used[Stage::kLearn] - audit_->stale,
           spec_.episodes());
    expect(used[Stage::kVerify] == verification_episodes(spec_), "{} episodes verify, {} are expected",
           used[Stage::kVerify], verification_episodes(spec_));
    for (const LeaseId lease : leases_) {
      expect(ended_.contains(lease) || tells_by_lease_.contains(lease), "lease {} has no end", lease.value);
    }
  }

  void check_counters() {
    const wire::Counters& counters = audit_->counters;
    const auto equal = [&](const char* name, int64_t counter, int64_t rows) {
      expect(counter == rows, "counter {} is {}, the history has {}", name, counter, rows);
    };
    const auto ended = [&](LeaseEnd how) { return endings_[how]; };
    equal("granted", counters.granted(), audit_->leases);
    equal("accepted + late + stale", counters.accepted() + counters.late() + counters.stale(),
          audit_->outcomes);
    equal("expired", counters.expired(), ended(LeaseEnd::kExpired) + ended(LeaseEnd::kCrashed));
    equal("timed_out", counters.timed_out(), ended(LeaseEnd::kExpired));
    // With a result that says so a lease ends as failed.
    const int64_t reported = counters.crashed() - ended(LeaseEnd::kCrashed);
    expect(reported >= 0 && reported <= (hostile_ ? counters.failed() : 0),
           "counter crashed is {}, the history has {}", counters.crashed(), ended(LeaseEnd::kCrashed));
    equal("released", counters.released(), ended(LeaseEnd::kReleased) + ended(LeaseEnd::kPreempted));
    equal("preempted", counters.preempted(), ended(LeaseEnd::kPreempted));
    equal("set_aside", counters.set_aside(), audit_->given_up);
    equal("answers_kept", counters.answers_kept(), audit_->answers_kept);
    if (hostile_) {
      const int64_t failed = ended(LeaseEnd::kFailed);
      expect(counters.failed() >= failed && failed > 0,
             "{} failures are counted, the history has {} and someone "
             "made them up",
             counters.failed(), failed);
      expect(
          counters.foreign() > 0 && counters.foreign() <= counters.rejected() && counters.not_allowed() > 0,
          "{} rejected results, {} of them foreign, and {} messages that are not allowed: someone sent some",
          counters.rejected(), counters.foreign(), counters.not_allowed());
      return;
    }
    equal("failed", counters.failed(), 0);
    equal("rejected", counters.rejected(), 0);
    equal("malformed", counters.malformed(), 0);
  }

  void check_policy() {
    const PolicyReplay by_hand = replay_policy(*history_, spec_);
    audit_->faults.insert(audit_->faults.end(), by_hand.faults.begin(), by_hand.faults.end());
    const Core core(spec_, policy::make_policy(policy_config(spec_)), *history_, Timestamp{});
    expect(core.stage() == Stage::kFinished, "the replay ends in stage {}", name(core.stage()));
    expect(core.policy().save() == by_hand.policy->save(),
           "the core's replay gives another policy than one by hand");
    audit_->policy_version = core.policy().version();
    audit_->shares = core.policy().describe().per_layer;
    audit_->recommended = core.policy().recommend().samples;
    audit_->policy_state = core.policy().save();
  }

  wire::RunSpec spec_;
  std::unique_ptr<const History> history_;
  bool hostile_;
  Audit* audit_;
  std::map<EpisodeId, PlannedEpisode> asked_;
  std::map<EpisodeId, std::vector<QuestionResult>> expected_;
  std::map<EpisodeId, std::set<uint32_t>> kept_;
  std::set<EpisodeId> told_, given_up_;
  std::set<LeaseId> leases_, ended_, tells_by_lease_;
  std::map<LeaseEnd, int64_t> endings_;
};

}  // namespace

Audit audit_run(const std::filesystem::path& run_directory, bool hostile) {
  Audit audit;
  const HistoryReport report =
      check_history(history_path(run_directory), wire::read_spec(spec_path(run_directory)));
  for (const HistoryProblem& problem : report.problems) {
    audit.faults.push_back(fmt::format("history check: {}: {}", problem.where, problem.what));
  }
  if (!report.replayed || !report.exact) audit.faults.push_back("history check: the replay is not exact");
  if (!audit.faults.empty()) return audit;  // the rest would stumble over the same
  Auditor(run_directory, hostile, &audit).run();
  return audit;
}

std::vector<std::string> compare(const Audit& audit, const wire::Status& live) {
  std::vector<std::string> faults;
  const auto expect = [&](bool holds, const std::string& what) {
    if (!holds) faults.push_back(fmt::format("the live aggregator's {} is not that of its history", what));
  };
  expect(live.policy_version() == audit.policy_version, "policy version");
  expect(std::ranges::equal(live.shares(), audit.shares), "policy (shares, to the last bit)");
  expect(std::ranges::equal(live.recommended(), audit.recommended), "recommended schedule");
  // A process that leaves in the middle of a handshake is a refused connection, also after the status was
  // taken.
  wire::Counters counters = live.counters();
  counters.set_refused_connections(
      std::max(counters.refused_connections(), audit.counters.refused_connections()));
  expect(counters.SerializeAsString() == audit.counters.SerializeAsString(),
         fmt::format("set of counters ({}; stored: {})", counters.ShortDebugString(),
                     audit.counters.ShortDebugString()));
  return faults;
}

}  // namespace allot::chaos
