#include "policy/exact_layers.h"

#include <algorithm>
#include <utility>

namespace allot::policy {
namespace {

// Bounds of layers that are numbered without the exact ones.
Bounds sampled_part(const Bounds& bounds, int layers) {
  const std::vector<int32_t> exact = bounds.exact_layers(layers);
  Bounds part;
  for (Bounds::Range range : bounds.ranges) {
    if (range.exact) continue;
    // No layer is bounded twice, so a range has no exact layers within.
    const auto before = static_cast<int32_t>(std::ranges::lower_bound(exact, range.first) - exact.begin());
    range.first -= before;
    range.last -= before;
    part.ranges.push_back(range);
  }
  return part;
}

// Entries of the layers that sample, with `entry` for each exact layer. [layers]
template <class Entry>
std::vector<Entry> whole(std::vector<Entry> sampled, const std::vector<int32_t>& exact, const Entry& entry) {
  for (const int32_t layer : exact) sampled.insert(sampled.begin() + layer, entry);
  return sampled;
}

LayerCosts widened(LayerCosts costs, const std::vector<int32_t>& exact) {
  switch (costs.model) {
    case CostModel::kResponse:
      costs.weights = whole(std::move(costs.weights), exact, std::vector<double>(kResponseCurves));
      break;
    case CostModel::kDivergence:
      costs.scales = whole(std::move(costs.scales), exact, 0.0);
      costs.exponents = whole(std::move(costs.exponents), exact, 1.0);
      break;
    case CostModel::kShares:
      costs.shares = whole(std::move(costs.shares), exact, 0.0);
      break;
  }
  return costs;
}

class ExactLayers final : public Policy {
 public:
  ExactLayers(int layers, std::vector<int32_t> exact, std::unique_ptr<Policy> learner)
      : layers_(layers), exact_(std::move(exact)), learner_(std::move(learner)) {}

  std::vector<Proposal> ask(int count) override {
    std::vector<Proposal> proposals = learner_->ask(count);
    for (Proposal& proposal : proposals) proposal.schedule = widened(std::move(proposal.schedule));
    return proposals;
  }
  TellResult tell(const Outcome& outcome) override { return learner_->tell(outcome); }
  void give_up(int64_t number) override { learner_->give_up(number); }
  void bound(const Bounds& bounds) override { learner_->bound(sampled_part(bounds, layers_)); }

  Schedule recommend() const override { return widened(learner_->recommend()); }
  Description describe() const override {
    Description description = learner_->describe();
    if (!description.per_layer.empty()) widen(description.per_layer, 0.0);
    return description;
  }
  std::optional<Outlook> outlook() const override { return learner_->outlook(); }
  std::optional<LayerCosts> costs() const override {
    std::optional<LayerCosts> costs = learner_->costs();
    if (costs) costs = policy::widened(*std::move(costs), exact_);
    return costs;
  }
  int64_t version() const override { return learner_->version(); }
  uint64_t digest() const override { return learner_->digest(); }
  std::string save() const override { return learner_->save(); }

 private:
  template <class Entry>
  void widen(std::vector<Entry>& sampled, const Entry& entry) const {
    sampled = whole(std::move(sampled), exact_, entry);
  }
  Schedule widened(Schedule sampled) const {
    widen(sampled.samples, kExactLayer);
    return sampled;
  }

  int layers_;
  std::vector<int32_t> exact_;  // ascending
  std::unique_ptr<Policy> learner_;
};

}  // namespace

PolicyConfig sampled_part(const PolicyConfig& config) {
  PolicyConfig part = config;
  part.layers -= static_cast<int>(config.bounds.exact_layers(config.layers).size());
  part.bounds = sampled_part(config.bounds, config.layers);
  std::erase(part.start.samples, kExactLayer);
  return part;
}

Schedule with_exact_layers(const PolicyConfig& config, Schedule sampled) {
  return {whole(std::move(sampled.samples), config.bounds.exact_layers(config.layers), kExactLayer)};
}

LayerCosts with_exact_layers(const PolicyConfig& config, LayerCosts sampled) {
  return widened(std::move(sampled), config.bounds.exact_layers(config.layers));
}

std::unique_ptr<Policy> with_exact_layers(const PolicyConfig& config, std::unique_ptr<Policy> learner) {
  std::vector<int32_t> exact = config.bounds.exact_layers(config.layers);
  if (exact.empty()) return learner;
  return std::make_unique<ExactLayers>(config.layers, std::move(exact), std::move(learner));
}

}  // namespace allot::policy
