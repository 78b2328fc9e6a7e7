// The engine as the model that answers in this process.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "app/scoring/scoring.h"
#include "model/engine.h"
#include "worker/engine_generator.h"

namespace allot::app {

class EngineHere final : public ModelHere {
 public:
  // With `options` that begin as engine_options() of the plan, or with these.
  explicit EngineHere(std::optional<model::EngineOptions> options = {}) : options_(std::move(options)) {}

  void expect(std::span<const ScoringPlan> plans) override { expected_ = plans; }
  std::unique_ptr<evaluation::Generator> load(const ScoringPlan& plan, const evaluation::Task& task) override;
  void write_executed(const ScoringPlan& plan) override;
  // Once it is loaded, for as long as the generator lives.
  model::Engine& engine() { return *engine_; }

 private:
  std::optional<model::EngineOptions> options_;
  std::span<const ScoringPlan> expected_;
  // Of the expected plans, in their order; those that were given to the caller are gone.
  std::vector<std::unique_ptr<worker::EngineGenerator>> generators_;
  model::Engine* engine_ = nullptr;
};

}  // namespace allot::app
