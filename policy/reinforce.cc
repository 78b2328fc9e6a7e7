#include "policy/reinforce.h"

#include "base/json.h"

#include "policy/learner.h"
#include "policy/multinomial.h"
#include "policy/state.h"

namespace allot::policy {
namespace {

using nlohmann::json;

std::vector<int32_t> read_counts(const json& from, int layers, int64_t draws) {
  Schedule counts{from.get<std::vector<int32_t>>()};
  bool negative = false;
  for (const int32_t count : counts.samples) negative |= count < 0;
  require_state(std::ssize(counts.samples) == layers && counts.total() == draws && !negative,
                "the counts " + counts.to_string() + " are not " + std::to_string(draws) + " draws over " +
                    std::to_string(layers) + " layers");
  return std::move(counts.samples);
}

}  // namespace

void add_scaled(std::vector<double>& sum, double scale, const std::vector<double>& vector) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += scale * vector[i];
}

Reinforce::Reinforce(const PolicyConfig& config, Gradient gradient)
    : config_(config),
      gradient_(gradient),
      learning_rate_(parameter(config, "learning_rate")),
      episodes_per_update_(static_cast<int>(parameter(config, "episodes_per_update"))),
      logits_(start_logits(config)) {}

Reinforce::Reinforce(const PolicyConfig& config, Gradient gradient, const json& learner)
    : Reinforce(config, gradient) {
  logits_ = read_logits(learner, "logits", config.layers);
  version_ = learner.at("version");
  next_number_ = learner.at("next_number");
  require_state(version_ >= 0 && next_number_ >= 0, "version and next_number must be at least 0");
  for (const json& entry : read_list(learner, "asked")) {
    const int64_t number = entry.at("number");
    Asked asked{read_counts(entry.at("counts"), config_.layers, draws()), entry.at("log_prob"),
                entry.at("version")};
    require_state(number >= 0 && number < next_number_ && asked.version >= 0 && asked.version <= version_,
                  "proposal " + std::to_string(number) + " of version " + std::to_string(asked.version) +
                      " was never asked");
    asked_.emplace(number, std::move(asked));
  }
  for (const json& entry : read_list(learner, "samples")) {
    samples_.push_back(
        {read_counts(entry.at("counts"), config_.layers, draws()), entry.at("reward"), entry.at("log_prob")});
  }
}

std::vector<Proposal> Reinforce::ask(int count) {
  std::vector<Proposal> proposals;
  for (; count > 0; --count) {
    const int64_t number = next_number_++;
    const DrawStream stream(config_.seed, static_cast<uint64_t>(number), DrawPurpose::kMultinomial);
    Asked asked{draw_multinomial(logits_, draws(), stream), 0, version_};
    asked.log_prob = multinomial_log_prob(asked.counts, logits_);
    Schedule schedule{asked.counts};
    for (int32_t& samples : schedule.samples) samples += config_.floor;
    // What was drawn is learned from; how bounds change it is a part of how rewards follow from draws.
    schedule = kept(schedule, config_.floor, limits_of(config_));
    proposals.push_back({number, number, std::move(schedule), asked.log_prob, version_});
    asked_.emplace(number, std::move(asked));
  }
  return proposals;
}

TellResult Reinforce::tell(const Outcome& outcome) {
  check_reward(outcome);
  if (outcome.number < 0 || outcome.number >= next_number_) return TellResult::kUnknown;
  const auto found = asked_.extract(outcome.number);
  if (found.empty()) return TellResult::kDuplicate;
  const Asked& asked = found.mapped();
  if (version_ - asked.version > config_.max_policy_lag) return TellResult::kStale;
  samples_.push_back({asked.counts, row_of(outcome.kind).utility(outcome.reward), asked.log_prob});
  if (std::ssize(samples_) == episodes_per_update_) update();
  return TellResult::kLearned;
}

void Reinforce::give_up(int64_t number) {
  asked_.erase(number);
}

void Reinforce::update() {
  add_scaled(logits_, learning_rate_, gradient_(samples_, logits_));
  samples_.clear();
  ++version_;
}

std::optional<int64_t> Reinforce::useful_in_flight() const {
  return policy::useful_in_flight(config_, episodes_per_update_);
}

void Reinforce::bound(const Bounds& bounds) {
  config_ = rebound(config_, bounds);
  ++version_;
}

Schedule Reinforce::recommend() const {
  return apportion(softmax(logits_), config_);
}

Description Reinforce::describe() const {
  return describe_shares(softmax(logits_));
}

uint64_t Reinforce::digest() const {
  StateDigest digest;
  digest.add(logits_).add(version_).add(next_number_);
  for (const auto& sample : samples_)
    digest.add(std::span(&sample.reward, 1)).add(std::span(&sample.log_prob, 1));
  return digest.value();
}

std::string Reinforce::save() const {
  json asked = json::array();
  for (const auto& [number, entry] : asked_) {
    asked.push_back({{"number", number},
                     {"counts", entry.counts},
                     {"log_prob", entry.log_prob},
                     {"version", entry.version}});
  }
  json samples = json::array();
  for (const auto& entry : samples_) {
    samples.push_back({{"counts", entry.counts}, {"reward", entry.reward}, {"log_prob", entry.log_prob}});
  }
  return write_state(config_, {{"logits", logits_},
                               {"version", version_},
                               {"next_number", next_number_},
                               {"asked", std::move(asked)},
                               {"samples", std::move(samples)}});
}

}  // namespace allot::policy
