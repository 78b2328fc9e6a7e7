// A model of all answers (policy/response_model.h) in place of the slopes of `pairs`: each outcome, wherever
// it was asked, sharpens what is believed of every layer, and the schedule of least expected cost follows
// exactly. Two forms of the model are kept, one in which layers suffer smoothly and one in which each has a
// need; the one that foretells answers better leads, unless its schedules lose where both are asked. Where a
// run measures divergences first, these find the schedule that the answers start from
// (policy/divergence_phase.h).
#include <algorithm>
#include <cmath>
#include <future>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "policy/belief.h"
#include "policy/divergence_phase.h"
#include "policy/learner.h"
#include "policy/race.h"
#include "policy/response_state.h"
#include "policy/state.h"

namespace allot::policy {
namespace {

using nlohmann::json;

// The defaults are measured in docs/policy.md.
constexpr Parameter kParameters[] = {{.name = "outcomes_per_update",
                                      .whole = true,
                                      .initial = 8,
                                      .least = 3,
                                      .most = 100'000,
                                      .hint = "K",
                                      .help = "outcomes of one update"},
                                     {.name = "width",
                                      .initial = 1.5,
                                      .least = 0.01,
                                      .most = 5,
                                      .hint = "C",
                                      .help = "most that is added to and taken from each log share"}};

constexpr int64_t kGroup = 8;  // proposals on the same questions
// Outcomes until the perturbations follow the best schedule on average. Before, they stay around the start,
// from where all layers can be told apart.
constexpr size_t kFirstOutcomes = 112;
// Outcomes until something else than the start is recommended.
constexpr size_t kTrustedOutcomes = 48;
constexpr double kQuestions = 16;  // where an outcome does not say how many it is the mean of
// Outcomes from which the chain of the steps walks, and with which the two forms are first compared: the
// first ones say more of the prior than of the form.
constexpr int64_t kWalkingSteps = 40;
constexpr int64_t kComparedOutcomes = 64;
// Tables of costs have layers x (total + 1) entries.
constexpr int64_t kMostCosts = 4'000'000;
constexpr int64_t kMostTotal = 65'535;
// Perturbations among which the most telling one is chosen.
constexpr int kCandidates = 16;
// By how much the log chance of all answers must be larger under steps for these to lead, and to go on
// leading. Layers are expected to suffer smoothly.
constexpr double kEvidenceOfSteps = 6;
constexpr double kEvidenceToStay = 2;
// By how many standard errors their schedules must be ahead in the race as well.
constexpr double kLead = 0.5;
constexpr double kLeadToStay = -0.5;
// What is far behind must not take as long to come back.
constexpr double kLeastEvidence = -10;
// From that on the best schedules of both are compared.
constexpr double kEvidenceToRace = 3;
// The least width as a share of the most: narrower, integer schedules hardly differ.
constexpr double kLeastWidth = 0.13;
constexpr double kBlindWidths[] = {0.17, 0.33, 0.53, 0.8};  // before the first update, as shares of the most
// How many standard deviations over the draws must lie between a schedule and the one to return to. The rule
// is applied after every update, and once is enough to be wrong.
constexpr double kSure = 2.5;
// The model's curves and its link are not the truth, so that an advantage is off by about this share of
// itself however many answers there are.
constexpr double kMisfit = 0.2;

class Automatic final : public Policy {
 public:
  explicit Automatic(const PolicyConfig& config);
  // Continues from the fields that save() wrote.
  Automatic(const PolicyConfig& config, const json& learner);

  std::vector<Proposal> ask(int count) override;
  TellResult tell(const Outcome& outcome) override;
  void give_up(int64_t number) override;
  std::optional<int64_t> useful_in_flight() const override {
    return policy::useful_in_flight(config_, static_cast<int64_t>(outcomes_per_update_));
  }
  void bound(const Bounds& bounds) override;
  Schedule recommend() const override { return recommended_; }
  Description describe() const override;
  std::optional<Outlook> outlook() const override;
  std::optional<LayerCosts> costs() const override;
  int64_t version() const override { return version_; }
  std::string save() const override;
  uint64_t digest() const override;

 private:
  struct Open {
    Schedule schedule = {};
    int64_t version = 0;  // when it was asked
    int64_t group = 0;
    std::optional<DivergencePhase::Place> place = {};  // of a divergence
    std::optional<int> candidate = {};                 // of the race
  };
  // How a reward becomes the share of right answers that the model learns from: as it is when `scale` is 0,
  // else as sigmoid((value - centre) / scale).
  struct Measure {
    bool known = false;
    double centre = 0;
    double scale = 0;
  };

  // The parts of ask(): the next divergence, and the next proposal of what the run measures.
  Proposal ask_divergence(int64_t number);
  Proposal ask_answers(int64_t number);
  // After a batch of divergences was learned.
  void follow_divergences();
  // The second part of a run starts at what the first one found.
  void begin_answers();
  // Reads what was told since the last update into the model, runs the chain and recommends again.
  void update();
  void learn_measure();
  double share_of(double value) const;
  // Which form of the model leads, after what it foretold of the answers that wait.
  void choose_form();
  // Enough was learned for both forms to be compared.
  bool compares() const { return learned_ >= kComparedOutcomes; }
  void walk(Belief& belief, size_t sweeps, const char* purpose) const;
  // `belief`, for the bounds and this start of the configuration as it is now.
  Belief bounded(const Belief& belief, ResponseCurves::Form form, const Schedule& start) const;
  // The leading belief's best schedule becomes `settled_`, and is recommended where its draws say that it is
  // better than the even one and the start.
  void settle();
  const Belief& belief() const { return by_steps_ ? steps_ : smooth_; }
  // Of random perturbations around `centre` the most telling one.
  Schedule telling(const Schedule& centre, int64_t number) const;
  // Multiplies each share of `centre` by e^width or e^-width, at random.
  Schedule perturbed(const Schedule& centre, double width, DrawStream& draws) const;

  PolicyConfig config_;
  // The parameters, read once.
  size_t outcomes_per_update_;
  double most_width_;
  std::optional<DivergencePhase> phase_;  // where divergences come first
  Belief smooth_;
  Belief steps_;
  int64_t version_ = 0;
  int64_t next_number_ = 0;
  int64_t group_ = -1;                    // the newest
  int64_t in_group_ = 0;                  // of its kGroup proposals, asked; 0 where it is complete
  int64_t last_batch_ = 0;                // the newest group of divergences
  std::map<int64_t, Open> open_;          // by number: neither told nor given up
  std::vector<ResponseOutcome> waiting_;  // told since the last update; their rewards are values
  Measure measure_;
  int64_t learned_ = 0;    // outcomes since the answers began
  double evidence_ = 0;    // of steps: log chance of the answers under them less that under smooth curves
  bool by_steps_ = false;  // steps lead
  // Between the best schedules of the smooth curves and of the steps.
  Race race_;
  Schedule even_;
  Schedule level_;  // the even one, as close as the bounds let it
  Schedule start_;
  Schedule settled_;  // the best on average, around which is asked
  // That race in the next groups, empty where they do not, and the one that the next proposal asks.
  Schedule of_smooth_;
  Schedule of_steps_;
  Schedule opponent_;
  Schedule recommended_;
};

struct Moments {
  double mean = 0;
  double deviation = 0;
};

Moments moments_of(const std::vector<double>& values) {
  Moments moments;
  const auto count = static_cast<double>(values.size());
  for (const double value : values) moments.mean += value / count;
  double variance = 0;
  for (const double value : values) variance += (value - moments.mean) * (value - moments.mean) / count;
  moments.deviation = std::sqrt(variance);
  return moments;
}

bool surely_above_zero(const std::vector<double>& values) {
  const Moments moments = moments_of(values);
  return moments.mean > 0 && moments.mean > kSure * moments.deviation;
}

Outlook::Estimate estimate_of(const std::vector<double>& values) {
  const Moments moments = moments_of(values);
  const double half = 1.96 * std::hypot(moments.deviation, kMisfit * moments.mean);
  return {moments.mean, std::max(moments.mean - half, -1.0), std::min(moments.mean + half, 1.0)};
}

// What is larger the better a schedule is, and for divergences about as spread as the logit of an accuracy.
double value_of(const Outcome& outcome) {
  return row_of(outcome.kind).utility(outcome.reward);
}

Automatic::Automatic(const PolicyConfig& config)
    : config_(config),
      outcomes_per_update_(static_cast<size_t>(parameter(config, "outcomes_per_update"))),
      most_width_(parameter(config, "width")),
      smooth_(ResponseCurves::Form::kSmooth, config, config.start,
              DrawStream(config.seed, 0, draw_purpose("auto-prior"))),
      steps_(ResponseCurves::Form::kSteps, config, {},
             DrawStream(config.seed, 0, draw_purpose("auto-prior-steps"))),
      even_(even_schedule(config.layers, config.total, config.floor)),
      level_(kept(even_, config.floor, limits_of(config))),
      start_(start_schedule(config)),
      settled_(start_),
      recommended_(start_) {
  if (config.divergence_episodes == 0) return;
  phase_.emplace(config);
  if (phase_->over()) begin_answers();
}

std::vector<Proposal> Automatic::ask(int count) {
  std::vector<Proposal> proposals;
  for (; count > 0; --count) {
    const int64_t number = next_number_++;
    const bool divergence = phase_ && !phase_->waits();
    proposals.push_back(divergence ? ask_divergence(number) : ask_answers(number));
  }
  return proposals;
}

Proposal Automatic::ask_divergence(int64_t number) {
  DivergencePhase::Asked asked = phase_->ask();
  if (asked.place.member == 0) last_batch_ = ++group_;
  in_group_ = 0;
  open_.emplace(number,
                Open{.schedule = asked.schedule, .version = version_, .group = group_, .place = asked.place});
  return {.number = number,
          .group = group_,
          .schedule = std::move(asked.schedule),
          .policy_version = version_,
          .reward_kind = RewardKind::kDivergence};
}

Proposal Automatic::ask_answers(int64_t number) {
  if (in_group_ == 0) ++group_;
  in_group_ = (in_group_ + 1) % kGroup;
  Open asked{.version = version_, .group = group_};
  const int64_t place = (in_group_ + kGroup - 1) % kGroup;
  if (place == 0) opponent_ = of_steps_;
  if (phase_ && !phase_->over()) {
    asked.schedule = telling(phase_->best(), number);
  } else if (place == 0 && !opponent_.samples.empty()) {
    asked.candidate = 0;
    asked.schedule = of_smooth_;
  } else if (place == 1 && !opponent_.samples.empty()) {
    asked.candidate = 1;
    asked.schedule = std::exchange(opponent_, {});
  } else {
    asked.schedule = telling(smooth_.outcomes().size() < kFirstOutcomes ? start_ : settled_, number);
  }
  Proposal proposal{
      .number = number, .group = group_, .schedule = asked.schedule, .policy_version = version_};
  // Nothing named would be a divergence.
  if (number < config_.divergence_episodes) proposal.reward_kind = config_.reward_kind;
  open_.emplace(number, std::move(asked));
  return proposal;
}

Schedule Automatic::telling(const Schedule& centre, int64_t number) const {
  DrawStream draws(config_.seed, static_cast<uint64_t>(number), draw_purpose("auto-ask"));
  // Nothing is known yet of how far accuracy falls.
  if (smooth_.outcomes().empty()) return perturbed(centre, most_width_ * kBlindWidths[number % 4], draws);
  Schedule most_telling;
  double most = 0;
  for (int candidate = 0; candidate < kCandidates; ++candidate) {
    const double width = most_width_ * std::pow(kLeastWidth, draws.uniform());
    Schedule schedule = perturbed(centre, width, draws);
    const double told = belief().telling(schedule);
    if (candidate > 0 && told <= most) continue;
    most = told;
    most_telling = std::move(schedule);
  }
  return most_telling;
}

Schedule Automatic::perturbed(const Schedule& centre, double width, DrawStream& draws) const {
  std::vector<double> shares;
  for (const int32_t samples : centre.samples) {
    // Half a sample more, so that a layer at the floor can rise.
    shares.push_back((samples - config_.floor + 0.5) * std::exp(draws.below(2) == 1 ? width : -width));
  }
  return apportion(shares, config_);
}

TellResult Automatic::tell(const Outcome& outcome) {
  check_reward(outcome);
  if (outcome.number < 0 || outcome.number >= next_number_) return TellResult::kUnknown;
  const auto found = open_.find(outcome.number);
  if (found == open_.end()) return TellResult::kDuplicate;
  const Open asked = std::move(found->second);
  open_.erase(found);
  const bool stale = version_ - asked.version > config_.max_policy_lag;
  if (asked.place) {
    const auto told = stale ? phase_->give_up(*asked.place) : phase_->tell(*asked.place, outcome.reward);
    if (told == DivergencePhase::Told::kLearned) follow_divergences();
    return stale || told == DivergencePhase::Told::kDropped ? TellResult::kStale : TellResult::kLearned;
  }
  if (asked.candidate) {
    race_.tell(asked.group, *asked.candidate,
               stale ? std::nullopt : std::optional(share_of(value_of(outcome))));
  }
  if (stale) return TellResult::kStale;
  const double questions = outcome.results.empty() ? kQuestions : static_cast<double>(outcome.results.size());
  waiting_.push_back({asked.schedule.samples, asked.group, value_of(outcome), questions});
  if (waiting_.size() == outcomes_per_update_) update();
  if (phase_ && asked.group > last_batch_ && phase_->overtaken()) follow_divergences();
  return TellResult::kLearned;
}

void Automatic::give_up(int64_t number) {
  const auto found = open_.find(number);
  if (found == open_.end()) return;
  const Open asked = std::move(found->second);
  open_.erase(found);
  if (asked.candidate) race_.tell(asked.group, *asked.candidate, std::nullopt);
  if (asked.place && phase_->give_up(*asked.place) == DivergencePhase::Told::kLearned) follow_divergences();
}

void Automatic::follow_divergences() {
  ++version_;
  recommended_ = phase_->best();
  if (phase_->over()) begin_answers();
}

void Automatic::begin_answers() {
  start_ = settled_ = recommended_ = phase_->best();
  if (!phase_->informed()) return;
  // What came before was learned without knowing the start.
  const std::vector<ResponseOutcome> known(smooth_.outcomes().begin(), smooth_.outcomes().end());
  smooth_ = Belief(ResponseCurves::Form::kSmooth, config_, start_,
                   DrawStream(config_.seed, 1, draw_purpose("auto-prior")));
  for (const ResponseOutcome& outcome : known) smooth_.add(outcome);
  learned_ = 0;
  evidence_ = 0;
  by_steps_ = false;
  of_smooth_ = of_steps_ = {};
}

void Automatic::bound(const Bounds& bounds) {
  config_ = rebound(config_, bounds);
  ++version_;
  const Limits limits = limits_of(config_);
  level_ = kept(even_, config_.floor, limits);
  for (Schedule* schedule : {&settled_, &of_smooth_, &of_steps_, &opponent_, &recommended_})
    if (!schedule->samples.empty()) *schedule = kept(*schedule, config_.floor, limits);
  if (phase_) phase_->bound(config_);
  start_ = phase_ && phase_->over() ? phase_->best() : start_schedule(config_);
  // What was learned holds under any bounds; what follows from the start does so with the new one, as in a
  // learner that is restored under these bounds.
  const bool informed = phase_ && phase_->over() && phase_->informed();
  smooth_ = bounded(smooth_, ResponseCurves::Form::kSmooth, informed ? start_ : config_.start);
  steps_ = bounded(steps_, ResponseCurves::Form::kSteps, {});
}

Belief Automatic::bounded(const Belief& belief, ResponseCurves::Form form, const Schedule& start) const {
  Belief next(form, config_, start, DrawStream(config_.seed, 0, draw_purpose("auto-prior")));
  for (const ResponseOutcome& outcome : belief.outcomes()) next.add(outcome);
  next.restore(belief.save());
  return next;
}

void Automatic::update() {
  ++version_;
  if (!measure_.known) learn_measure();
  for (ResponseOutcome& outcome : waiting_) outcome.reward = share_of(outcome.reward);
  choose_form();
  for (const ResponseOutcome& outcome : waiting_) {
    smooth_.add(outcome);
    steps_.add(outcome);
  }
  learned_ += std::ssize(waiting_);
  waiting_.clear();

  // The time of a sweep grows with the outcomes, and what one update changes falls with them. A sweep of
  // steps takes twice as long as one of smooth curves. The form that does not lead follows with half the
  // sweeps, and with an eighth when outcomes are many.
  constexpr size_t kSweeps = 30'000;
  constexpr size_t kManyOutcomes = 600;
  const size_t outcomes = smooth_.outcomes().size();
  const auto sweeps = std::clamp<size_t>(kSweeps / outcomes, 6, 250);
  const size_t behind = std::max<size_t>(1, sweeps / (outcomes > kManyOutcomes ? 8 : 2));
  const size_t of_steps = outcomes > kManyOutcomes ? sweeps / 2 : sweeps;
  // Side by side, since whoever tells waits for both: they know nothing of each other.
  std::future<void> steps;
  if (learned_ >= kWalkingSteps) {
    steps = std::async(std::launch::async,
                       [&] { walk(steps_, by_steps_ || !compares() ? of_steps : behind, "auto-steps"); });
  }
  walk(smooth_, by_steps_ ? behind : sweeps, "auto");
  if (steps.valid()) steps.get();
  if (outcomes >= kTrustedOutcomes) settle();
}

void Automatic::walk(Belief& belief, size_t sweeps, const char* purpose) const {
  belief.walk(sweeps, DrawStream(config_.seed, static_cast<uint64_t>(version_), draw_purpose(purpose)));
}

void Automatic::choose_form() {
  if (!compares()) return;
  evidence_ += steps_.log_predictive(waiting_) - smooth_.log_predictive(waiting_);
  evidence_ = std::max(evidence_, kLeastEvidence);
  by_steps_ = evidence_ > (by_steps_ ? kEvidenceToStay : kEvidenceOfSteps) &&
              race_.second_lead() > (by_steps_ ? kLeadToStay : kLead);
}

void Automatic::learn_measure() {
  measure_.known = true;
  const auto is_share = [](const ResponseOutcome& outcome) {
    return outcome.reward >= 0 && outcome.reward <= 1;
  };
  if (std::ranges::all_of(waiting_, is_share)) return;
  const auto count = static_cast<double>(waiting_.size());
  double square = 0;
  for (const ResponseOutcome& outcome : waiting_) measure_.centre += outcome.reward / count;
  for (const ResponseOutcome& outcome : waiting_)
    square += std::pow(outcome.reward - measure_.centre, 2) / count;
  measure_.scale = square > 0 ? std::sqrt(square) : 1;
}

double Automatic::share_of(double value) const {
  if (measure_.scale == 0) return std::clamp(value, 0.0, 1.0);
  return 1 / (1 + std::exp((measure_.centre - value) / measure_.scale));
}

void Automatic::settle() {
  settled_ = belief().best();
  const bool race = compares() && evidence_ > kEvidenceToRace && smooth_.outcomes().size() >= kFirstOutcomes;
  of_smooth_ = race ? smooth_.best() : Schedule{};
  of_steps_ = race ? steps_.best() : Schedule{};
  if (phase_ && !phase_->over()) return;
  // Of the schedules to return to, the better one by most draws; the start where they say nothing.
  recommended_ = level_ != start_ && surely_above_zero(belief().advantages(level_, start_)) ? level_ : start_;
  if (surely_above_zero(belief().advantages(settled_, recommended_))) recommended_ = settled_;
}

std::optional<Outlook> Automatic::outlook() const {
  // Rewards that were bent into shares have units of their own.
  if (smooth_.outcomes().size() < kTrustedOutcomes || measure_.scale != 0 || (phase_ && !phase_->over())) {
    return std::nullopt;
  }
  Outlook outlook{.over_even = estimate_of(belief().advantages(recommended_, even_))};
  if (start_ != even_) outlook.over_start = estimate_of(belief().advantages(recommended_, start_));
  outlook.left_to_gain = belief().left_to_gain(recommended_);
  return outlook;
}

std::optional<LayerCosts> Automatic::costs() const {
  // Whoever knows of nothing better than the even schedule spreads every total evenly.
  if (recommended_ == level_) return std::nullopt;
  const bool from_divergences = phase_ && phase_->informed() && (!phase_->over() || recommended_ == start_);
  if (from_divergences) return phase_->costs();
  // Steps are not convex, and what they need at another total does not follow from their best schedule at
  // this.
  if (recommended_ == start_ || by_steps_ || smooth_.outcomes().empty()) return std::nullopt;
  return anchored(smooth_.costs(), recommended_, config_.floor);
}

Description Automatic::describe() const {
  const auto spread = static_cast<double>(config_.total - int64_t{config_.layers} * config_.floor);
  std::vector<double> shares(static_cast<size_t>(config_.layers), 1.0 / config_.layers);
  for (size_t layer = 0; spread > 0 && layer < shares.size(); ++layer) {
    shares[layer] = (recommended_.samples[layer] - config_.floor) / spread;
  }
  Description description = describe_shares(std::move(shares));
  if (phase_) description.scalars.push_back({"phase", static_cast<double>(phase_->stage())});
  return description;
}

uint64_t Automatic::digest() const {
  StateDigest digest;
  for (const Belief* belief : {&smooth_, &steps_}) {
    const ResponseModel::State& state = belief->state();
    const double numbers[] = {state.intercept, state.population.centre, state.population.log_width};
    digest.add(state.log_amplitudes).add(state.group_effects).add(numbers);
  }
  const double evidence[] = {evidence_};
  digest.add(evidence).add(version_).add(next_number_).add(learned_);
  digest.add(std::ssize(smooth_.outcomes())).add(std::ssize(waiting_));
  return digest.add(settled_.to_string()).add(recommended_.to_string()).value();
}

std::string Automatic::save() const {
  json open = json::array();
  for (const auto& [number, asked] : open_) {
    json entry{{"number", number},
               {"version", asked.version},
               {"group", asked.group},
               {"samples", asked.schedule.samples}};
    if (asked.place) entry["place"] = {asked.place->batch, asked.place->member};
    if (asked.candidate) entry["candidate"] = *asked.candidate;
    open.push_back(std::move(entry));
  }
  json state = {
      {"version", version_},
      {"next_number", next_number_},
      {"group", group_},
      {"in_group", in_group_},
      {"last_batch", last_batch_},
      {"open", std::move(open)},
      {"waiting", to_json(waiting_)},
      {"outcomes", to_json(smooth_.outcomes())},
      {"measure", {{"known", measure_.known}, {"centre", measure_.centre}, {"scale", measure_.scale}}},
      {"smooth", smooth_.save()},
      {"steps", steps_.save()},
      {"learned", learned_},
      {"evidence", evidence_},
      {"by_steps", by_steps_},
      {"race", race_.save()},
      {"settled", settled_.samples},
      {"of_smooth", of_smooth_.samples},
      {"of_steps", of_steps_.samples},
      {"opponent", opponent_.samples},
      {"recommended", recommended_.samples}};
  if (phase_) state["phase"] = phase_->save();
  return write_state(config_, std::move(state));
}

Automatic::Automatic(const PolicyConfig& config, const json& learner) : Automatic(config) {
  version_ = learner.at("version");
  next_number_ = learner.at("next_number");
  group_ = learner.at("group");
  in_group_ = learner.at("in_group");
  last_batch_ = learner.at("last_batch");
  require_state(
      version_ >= 0 && next_number_ >= 0 && group_ >= (next_number_ > 0 ? 0 : -1) && last_batch_ >= 0,
      "version, next_number, group and last_batch must be at least 0");
  require_state(in_group_ >= 0 && in_group_ < kGroup, "in_group is " + std::to_string(in_group_));
  if (phase_ && !phase_->over()) {
    phase_->restore(learner.at("phase"));
    if (phase_->over()) begin_answers();
  }
  for (const json& entry : read_list(learner, "open")) {
    const int64_t number = entry.at("number");
    Open asked{.schedule = {entry.at("samples").get<std::vector<int32_t>>()},
               .version = entry.at("version"),
               .group = entry.at("group")};
    check_schedule(asked.schedule, config.layers, config.floor, config.total);
    if (entry.contains("place")) {
      require_state(phase_.has_value(), "a divergence was asked of a learner of answers");
      asked.place = {.batch = entry.at("place").at(0).get<int64_t>(),
                     .member = entry.at("place").at(1).get<int32_t>()};
    }
    if (entry.contains("candidate")) asked.candidate = entry.at("candidate").get<int>();
    require_state(asked.candidate.value_or(0) == 0 || asked.candidate == 1,
                  "candidate of proposal " + std::to_string(number) + " must be 0 or 1");
    require_state(number >= 0 && number < next_number_ && asked.version >= 0 && asked.version <= version_,
                  "proposal " + std::to_string(number) + " was never asked");
    open_.emplace(number, std::move(asked));
  }
  waiting_ = read_outcomes(learner, "waiting", config);
  require_state(waiting_.size() < outcomes_per_update_,
                "waiting holds " + std::to_string(waiting_.size()) + " outcomes");
  for (const ResponseOutcome& outcome : read_outcomes(learner, "outcomes", config)) {
    smooth_.add(outcome);
    steps_.add(outcome);
  }
  const json& measure = learner.at("measure");
  measure_ = {.known = measure.at("known"), .centre = measure.at("centre"), .scale = measure.at("scale")};
  smooth_.restore(learner.at("smooth"));
  steps_.restore(learner.at("steps"));
  learned_ = learner.at("learned");
  require_state(learned_ >= 0, "learned is " + std::to_string(learned_));
  evidence_ = learner.at("evidence");
  by_steps_ = learner.at("by_steps");
  race_.restore(learner.at("race"));
  const auto read_schedule = [&](const json& samples) {
    Schedule schedule{samples.get<std::vector<int32_t>>()};
    check_schedule(schedule, config.layers, config.floor, config.total);
    return schedule;
  };
  settled_ = read_schedule(learner.at("settled"));
  recommended_ = read_schedule(learner.at("recommended"));
  const auto read_candidate = [&](const char* field) {
    return read_list(learner, field).empty() ? Schedule{} : read_schedule(learner.at(field));
  };
  of_smooth_ = read_candidate("of_smooth");
  of_steps_ = read_candidate("of_steps");
  opponent_ = read_candidate("opponent");
}

}  // namespace

namespace learner_rows {

extern const Learner automatic{
    .name = "auto",
    .summary =
        "fits a model of how each layer suffers from few samples to all answers and solves for the best schedule",
    .parameters = kParameters,
    .max_policy_lag = kNoPolicyLagLimit,
    .mixes_kinds = true,
    .divergences = [](int layers) -> int64_t { return 64 + 16 * int64_t{layers}; },
    .knows_costs = true,
    .most_total = [](int layers) { return std::min(kMostTotal, kMostCosts / layers - 1); },
    .make = [](const PolicyConfig& config) -> std::unique_ptr<Policy> {
      return std::make_unique<Automatic>(config);
    },
    .restore = [](const PolicyConfig& config, const json& state) -> std::unique_ptr<Policy> {
      return std::make_unique<Automatic>(config, state);
    }};

}  // namespace learner_rows
}  // namespace allot::policy
