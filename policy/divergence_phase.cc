#include "policy/divergence_phase.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/json.h"
#include "policy/learner.h"
#include "policy/state.h"

namespace allot::policy {
namespace {

using nlohmann::json;

// Measurements of which a search can be made at all.
constexpr int64_t kLeast = 8;
constexpr int64_t kMostPairs = 8;  // of a batch
constexpr int64_t kMostCheckRounds = 6;
constexpr int64_t kMostCandidates = 4;
// Measurements per round of the check.
constexpr int64_t kPerRound = 24;
// Below this divergences differ by rounding alone, and 0 has no logarithm.
constexpr double kLeastDivergence = 1e-9;
// What is out counts as lost once this many later proposals are told,
constexpr int64_t kPatience = 64;
// plus this many for each divergence that is out.
constexpr int64_t kPatienceEach = 2;

int64_t rounds_of(int64_t divergences) {
  return std::clamp<int64_t>(divergences / kPerRound, 1, kMostCheckRounds);
}

// A search that leaves as many measurements as the rounds may need.
DivergenceSearchOptions search_options(const PolicyConfig& config) {
  const int64_t left = config.divergence_episodes - rounds_of(config.divergence_episodes) * kMostCandidates;
  const int64_t pairs = std::clamp<int64_t>(left / 8, 1, kMostPairs);
  return {.layers = config.layers,
          .total = config.total,
          .floor = config.floor,
          .limits = limits_of(config),
          .seed = config.seed,
          .steps = static_cast<int>(left / (2 * pairs)),
          .pairs = static_cast<int>(pairs)};
}

}  // namespace

DivergencePhase::DivergencePhase(const PolicyConfig& config)
    : config_(config),
      rounds_(rounds_of(config.divergence_episodes)),
      model_(config.layers, static_cast<double>(config.total) / config.layers) {
  begin();
}

void DivergencePhase::begin() {
  chosen_.reset();
  search_.reset();
  if (config_.divergence_episodes >= kLeast)
    search_.emplace(search_options(config_), &model_, start_schedule(config_));
  if (!search_ || search_->done()) chosen_ = start_schedule(config_);
}

void DivergencePhase::bound(const PolicyConfig& config) {
  earlier_.push_back({.bounds = config_.bounds, .start = config_.start, .learned = std::ssize(learned_)});
  config_ = config;
  const Limits limits = limits_of(config);
  const auto keep = [&](Schedule& schedule) { schedule = kept(schedule, config.floor, limits); };
  if (search_) search_->bound(limits);
  std::ranges::for_each(candidates_, keep);
  if (chosen_) chosen_ = informed() ? kept(*chosen_, config.floor, limits) : start_schedule(config);
  if (next_member_ == 0) return;
  Batch& begun = batches_.at(next_batch_ - 1);
  for (size_t member = static_cast<size_t>(next_member_); member < begun.size(); ++member)
    keep(begun[member].schedule);
}

DivergencePhase::Stage DivergencePhase::stage() const {
  if (chosen_) return Stage::kOver;
  return search_->done() ? Stage::kCheck : Stage::kSearch;
}

bool DivergencePhase::waits() const {
  if (over()) return true;
  if (next_member_ > 0) return false;
  const int64_t steps = search_options(config_).steps;
  return next_batch_ >= steps && (!search_->done() || next_batch_ >= steps + rounds_);
}

DivergencePhase::Asked DivergencePhase::ask() {
  if (next_member_ == 0) {
    Batch batch;
    const std::vector<Schedule> schedules =
        search_->done() ? candidates_ : search_->batch(static_cast<int>(next_batch_));
    for (const Schedule& schedule : schedules) batch.push_back({schedule});
    batches_.emplace(next_batch_++, std::move(batch));
  }
  const int64_t number = next_batch_ - 1;
  const Batch& batch = batches_.at(number);
  const auto member = static_cast<size_t>(next_member_++);
  if (member + 1 == batch.size()) next_member_ = 0;
  return {batch[member].schedule, {number, static_cast<int32_t>(member)}};
}

DivergencePhase::Told DivergencePhase::tell(Place place, double divergence) {
  return end(place, std::max(divergence, kLeastDivergence));
}

DivergencePhase::Told DivergencePhase::give_up(Place place) {
  return end(place, std::nullopt);
}

// A batch that was not asked as a whole has open members.
DivergencePhase::Told DivergencePhase::end(Place place, std::optional<double> divergence) {
  const auto found = batches_.find(place.batch);
  if (found == batches_.end()) return Told::kDropped;
  Member& member = found->second.at(static_cast<size_t>(place.member));
  member.open = false;
  member.divergence = divergence;
  if (std::ranges::any_of(found->second, &Member::open)) return Told::kKept;
  const Batch batch = std::move(found->second);
  batches_.erase(found);
  learn(batch);
  return Told::kLearned;
}

bool DivergencePhase::overtaken() {
  if (!waits() || over()) return false;
  int64_t open = 0;
  for (const auto& [number, batch] : batches_) open += std::ranges::count(batch, true, &Member::open);
  if (++told_later_ < kPatience + kPatienceEach * open) return false;
  for (const auto& [number, batch] : std::exchange(batches_, {})) learn(batch);
  return true;
}

void DivergencePhase::learn(const Batch& batch) {
  learned_.push_back(batch);
  told_later_ = 0;
  if (!search_->done()) {
    std::vector<Schedule> schedules;
    std::vector<double> divergences;
    for (const Member& member : batch) {
      if (!member.divergence) continue;
      schedules.push_back(member.schedule);
      divergences.push_back(*member.divergence);
    }
    search_->tell(schedules, divergences);
    if (!search_->done()) return;
    candidates_ = search_->candidates();
    if (candidates_.size() == 1) chosen_ = candidates_.front();
    if (!informed()) chosen_ = start_schedule(config_);
    return;
  }
  if (static_cast<int64_t>(learned_.size()) == search_options(config_).steps + rounds_) choose();
}

void DivergencePhase::choose() {
  std::vector<double> sums(candidates_.size());
  int64_t complete = 0;
  for (auto round = learned_.end() - rounds_; round != learned_.end(); ++round) {
    if (!std::ranges::all_of(*round, [](const Member& member) { return member.divergence.has_value(); }))
      continue;
    ++complete;
    for (size_t k = 0; k < sums.size(); ++k) sums[k] += *(*round)[k].divergence;
  }
  // Where something is missing of every round, what the fit expects has to do.
  for (size_t k = 0; complete == 0 && k < sums.size(); ++k) sums[k] = model_.log_divergence(candidates_[k]);
  chosen_ = candidates_[static_cast<size_t>(std::ranges::min_element(sums) - sums.begin())];
}

Schedule DivergencePhase::best() const {
  return chosen_ ? *chosen_ : search_->centre();
}

json DivergencePhase::save() const {
  const auto of_batch = [](const Batch& batch) {
    json members = json::array();
    for (const Member& member : batch) {
      members.push_back(
          {member.schedule.samples, member.open, member.divergence ? json(*member.divergence) : json()});
    }
    return members;
  };
  json learned = json::array(), out = json::array();
  for (const Batch& batch : learned_) learned.push_back(of_batch(batch));
  for (const auto& [number, batch] : batches_) out.push_back({number, of_batch(batch)});
  json state = {{"next_batch", next_batch_},
                {"next_member", next_member_},
                {"told_later", told_later_},
                {"learned", std::move(learned)},
                {"out", std::move(out)}};
  if (earlier_.empty()) return state;
  json& earlier = state["earlier"] = json::array();
  for (const Earlier& before : earlier_)
    earlier.push_back({before.bounds.to_string(), before.start.samples, before.learned});
  return state;
}

void DivergencePhase::restore(const json& saved) {
  const auto read_batch = [&](const json& members) {
    Batch batch;
    for (const json& entry : members) {
      Member member{.schedule = {entry.at(0).get<std::vector<int32_t>>()}, .open = entry.at(1)};
      if (!entry.at(2).is_null()) member.divergence = entry.at(2).get<double>();
      check_schedule(member.schedule, config_.layers, config_.floor, config_.total);
      batch.push_back(std::move(member));
    }
    return batch;
  };
  // Each change of bounds comes after the batches that were learned before it.
  std::vector<Earlier> earlier;
  if (saved.contains("earlier")) {
    for (const json& entry : read_list(saved, "earlier")) {
      earlier.push_back({.bounds = parse_bounds(entry.at(0).get<std::string>()),
                         .start = {entry.at(1).get<std::vector<int32_t>>()},
                         .learned = entry.at(2)});
    }
  }
  const PolicyConfig now = config_;
  const auto config_after = [&](size_t changes) {
    PolicyConfig config = now;
    if (changes == earlier.size()) return config;
    config.bounds = earlier[changes].bounds;
    config.start = earlier[changes].start;
    validate(config);
    return config;
  };
  config_ = config_after(0);
  begin();
  const auto change = [&] {
    while (earlier_.size() < earlier.size() && earlier[earlier_.size()].learned == std::ssize(learned_))
      bound(config_after(earlier_.size() + 1));
  };
  change();
  for (const json& entry : read_list(saved, "learned")) {
    const Batch batch = read_batch(entry);
    const size_t members = over()            ? 0
                           : search_->done() ? candidates_.size()
                                             : 2 * static_cast<size_t>(search_options(config_).pairs);
    require_state(batch.size() == members, "a batch of divergences has " + std::to_string(batch.size()) +
                                               " members, expected " + std::to_string(members));
    learn(batch);
    change();
  }
  require_state(earlier_.size() == earlier.size(), "bounds changed after batches that were not learned");
  next_batch_ = saved.at("next_batch");
  next_member_ = saved.at("next_member");
  for (const json& entry : read_list(saved, "out")) {
    const int64_t number = entry.at(0);
    require_state(number >= 0 && number < next_batch_,
                  "batch " + std::to_string(number) + " of divergences was never asked");
    batches_.emplace(number, read_batch(entry.at(1)));
  }
  const bool begun = batches_.contains(next_batch_ - 1);
  require_state(next_batch_ == std::ssize(learned_) + std::ssize(batches_) && next_member_ >= 0 &&
                    (next_member_ == 0 || (begun && next_member_ < std::ssize(batches_.at(next_batch_ - 1)))),
                "next_batch and next_member are " + std::to_string(next_batch_) + " and " +
                    std::to_string(next_member_));
  told_later_ = saved.at("told_later");
}

}  // namespace allot::policy
