// The engine as the model that answers in this process.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "app/scoring/scoring.h"
#include "model/engine.h"

namespace allot::app {

class EngineHere final : public ModelHere {
 public:
  // With `options` that begin as engine_options() of the plan, or with these.
  explicit EngineHere(std::optional<model::EngineOptions> options = {}) : options_(std::move(options)) {}

  std::unique_ptr<evaluation::Generator> load(const ScoringPlan& plan, const evaluation::Task& task) override;
  void write_executed(const ScoringPlan& plan) override;
  // Once it is loaded, for as long as the generator lives.
  model::Engine& engine() { return *engine_; }

 private:
  std::optional<model::EngineOptions> options_;
  model::Engine* engine_ = nullptr;
};

}  // namespace allot::app
