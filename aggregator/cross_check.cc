#include "aggregator/cross_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <utility>

#include "aggregator/holder.h"
#include "base/philox.h"
#include "wire/messages.pb.h"

namespace allot::aggregator {
namespace {

constexpr uint32_t kCheckKey = 0x63686563;  // "chec"
constexpr int kMostHoldersShown = 100;
// Divergences are sums of many small numbers, which devices round differently.
constexpr double kBearableShare = 0.1;
constexpr double kBearable = 0.01;

bool agree(RewardKind kind, double first, double second) {
  if (row_of(kind).generates) return first == second;
  const double difference = std::abs(first - second);
  return difference <= kBearable || difference <= kBearableShare * std::max(first, second);
}

double share_of(const CheckTally::Row& row) {
  return static_cast<double>(row.disagreements) / static_cast<double>(row.questions);
}

}  // namespace

void CheckTally::add(RewardKind kind, std::string_view first_holder, std::span<const QuestionResult> first,
                     std::string_view second_holder, std::span<const QuestionResult> second) {
  if (first.size() != second.size())
    throw std::logic_error(
        fmt::format("a check has {} results of {} questions", second.size(), first.size()));
  int64_t disagreements = 0;
  for (size_t i = 0; i < first.size(); ++i) disagreements += !agree(kind, first[i].score, second[i].score);
  ++episodes_;
  const auto count = [&](Row* row) {
    row->questions += std::ssize(first);
    row->disagreements += disagreements;
  };
  count(&all_);
  for (const std::string_view holder : {first_holder, second_holder})
    count(&by_holder_.try_emplace(std::string(holder)).first->second);
}

wire::CrossCheck CheckTally::describe() const {
  wire::CrossCheck described;
  described.set_episodes(episodes_);
  described.set_questions(all_.questions);
  described.set_disagreements(all_.disagreements);
  std::vector<std::pair<std::string_view, Row>> rows(by_holder_.begin(), by_holder_.end());
  std::ranges::stable_sort(rows, std::greater<>{}, [](const auto& entry) { return share_of(entry.second); });
  for (const auto& [holder, row] : rows) {
    if (described.holders_size() == kMostHoldersShown) break;
    wire::CheckedHolder& shown = *described.add_holders();
    shown.set_holder(std::string(holder));
    shown.set_questions(row.questions);
    shown.set_disagreements(row.disagreements);
  }
  return described;
}

bool CrossCheck::is_drawn(EpisodeId episode) const {
  const auto number = static_cast<uint64_t>(episode.value);
  const PhiloxBlock block = philox4x32_10(
      {{static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32), 0, 0}}, seed_, kCheckKey);
  return static_cast<double>(block.word[0]) < share_ * 0x1p32;
}

void CrossCheck::told(const PlannedEpisode& episode, std::span<const QuestionResult> results,
                      const std::string& worker) {
  if (share_ <= 0 || waiting_.size() >= kMostWaiting || !is_drawn(episode.id)) return;
  waiting_.push_back({episode, {results.begin(), results.end()}, std::string(holder_of(worker))});
}

const PlannedEpisode* CrossCheck::waiting_for(std::string_view holder) const {
  const auto found = std::ranges::find_if(waiting_, [&](const Told& told) { return told.holder != holder; });
  return found == waiting_.end() ? nullptr : &found->episode;
}

PlannedEpisode CrossCheck::begin(EpisodeId checked) {
  const auto found = std::ranges::find(waiting_, checked, [](const Told& told) { return told.episode.id; });
  if (found == waiting_.end())
    throw std::logic_error(fmt::format("episode {} does not wait for its check", checked.value));
  PlannedEpisode check = found->episode;
  check.stage = Stage::kCheck;
  check.label = name(found->episode.stage);
  check.group = checked.value;
  check.log_prob = 0;
  begun_.emplace(checked, std::move(*found));
  waiting_.erase(found);
  return check;
}

void CrossCheck::finish(const PlannedEpisode& check, std::span<const QuestionResult> results,
                        const std::string& worker) {
  const auto told = begun_.extract({check.group});
  tally_.add(check.kind, told.mapped().holder, told.mapped().results, holder_of(worker), results);
}

void CrossCheck::give_up(const PlannedEpisode& check) {
  begun_.erase({check.group});
}

}  // namespace allot::aggregator
