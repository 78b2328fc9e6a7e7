#include "aggregator/history_audit.h"

#include <iterator>
#include <unordered_map>
#include <utility>
#include <variant>

#include "aggregator/holder.h"

namespace allot::aggregator {
namespace {

class Auditor {
 public:
  void add(const LeaseGranted& granted) {
    HolderAudit& holder = seen(granted.worker, granted.at);
    ++holder.granted;
    ++holder.held;
    held_by_.emplace(granted.lease, &holder);
  }
  void add(const LeaseEnded& ended) {
    HolderAudit* const holder = let_go(ended.lease);
    if (holder == nullptr) return;
    ++holder->ended[ended.how];
    holder->last = ended.at;
  }
  // A late result has had its lease ended before, perhaps that of another holder.
  void add(const EpisodeTold& told) {
    HolderAudit& holder = seen(told.worker, told.at);
    ++holder.results[told.verdict];
    holder.seconds += told.seconds;
    // The stored time includes that of answers which were kept from others.
    if (const auto kept = kept_seconds_.extract(told.episode)) holder.seconds -= kept.mapped();
    let_go(told.lease);
  }
  void add(const AnswersKept& kept) {
    HolderAudit& holder = seen(kept.worker, kept.at);
    holder.answers_kept += std::ssize(kept.results);
    holder.seconds += kept.seconds;
    kept_seconds_[kept.episode] += kept.seconds;
  }
  void add(const RunControlled& controlled) { audit_.controls.push_back(controlled); }
  template <class Other>
  void add(const Other& /*of no holder*/) {}

  Audit take() { return std::move(audit_); }

 private:
  HolderAudit& seen(const std::string& worker, Timestamp at) {
    const auto [entry, is_new] = audit_.holders.try_emplace(std::string(holder_of(worker)));
    HolderAudit& holder = entry->second;
    if (is_new) holder.first = at;
    holder.last = at;
    holder.workers.insert(worker);
    return holder;
  }
  // Who held the lease until now; null when it has ended before.
  HolderAudit* let_go(LeaseId lease) {
    const auto held = held_by_.extract(lease);
    if (held.empty()) return nullptr;
    --held.mapped()->held;
    return held.mapped();
  }

  Audit audit_;
  std::unordered_map<LeaseId, HolderAudit*> held_by_;
  std::unordered_map<EpisodeId, double> kept_seconds_;  // of open episodes
};

}  // namespace

Audit audit(const History& history) {
  Auditor auditor;
  history.replay(
      [&](const Record& record) { std::visit([&](const auto& event) { auditor.add(event); }, record); });
  return auditor.take();
}

}  // namespace allot::aggregator
