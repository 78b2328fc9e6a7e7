// A backend that behaves like a device: it takes two passes, does nothing until the first is taken, and only
// then learns which tokens the pass before has chosen. Another backend computes for it. What it is given is
// held to the contract of model/backend.h.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/backend.h"
#include "model/engine.h"

namespace allot::model {

// What a test sees and changes of the backend inside its engine.
struct DelayedPasses {
  int32_t at_once = 2;  // passes that it takes
  std::string calls;    // s for each pass submitted, t for each taken, o for each slot opened
  int64_t ran = 0;      // passes that were computed
  int64_t chosen = 0;   // tokens chosen in all
  int64_t fed = 0;      // tokens that the pass before chose
  // Asked for the token of a choice that is taken; what it returns is given in its place.
  std::function<int32_t(const TokenChoice& choice, int32_t token)> report = {};
  // Told of each pass that is submitted.
  std::function<void(const ForwardBatch& batch, std::span<const TokenChoice> choices)> submits = {};
  // Told of each pass whose states are kept.
  std::function<void(const ForwardBatch&)> keeps = {};
};

class DelayedBackend final : public Backend {
 public:
  DelayedBackend(std::unique_ptr<Backend> inner, int32_t page_size, DelayedPasses* seen)
      : inner_(std::move(inner)), page_size_(page_size), seen_(seen) {}

  const KvCacheShape& cache_shape() const override { return inner_->cache_shape(); }
  int32_t max_submitted() const override { return seen_->at_once; }

  void open_slot(int32_t slot, std::span<const int32_t> tokens) override {
    seen_->calls += 'o';
    work_.push_back([this, slot, ids = std::vector<int32_t>(tokens.begin(), tokens.end())] {
      inner_->open_slot(slot, ids);
    });
  }

  void submit(const ForwardBatch& batch, const kernels::AttentionMethod& attention,
              std::span<const TokenChoice> choices) override {
    seen_->calls += 's';
    expect_valid(batch, choices);
    if (seen_->submits) seen_->submits(batch, choices);
    ++waiting_;
    EXPECT_LE(waiting_, seen_->at_once);
    last_choices_.assign(choices.begin(), choices.end());
    seen_->chosen += std::ssize(choices);
    seen_->fed += std::ranges::count_if(batch.chosen_before, [](int32_t choice) { return choice >= 0; });
    work_.push_back([this, batch, attention, own = last_choices_] { run(batch, attention, own); });
  }

  std::span<const int32_t> take() override {
    seen_->calls += 't';
    EXPECT_GT(waiting_, 0) << "nothing was submitted";
    --waiting_;
    while (results_.empty()) run_one();
    taken_ = std::move(results_.front().tokens);
    if (seen_->report) {
      for (size_t i = 0; i < taken_.size(); ++i)
        taken_[i] = seen_->report(results_.front().choices[i], taken_[i]);
    }
    results_.pop_front();
    return taken_;
  }

  void wait() override {
    while (!work_.empty()) run_one();
  }

  std::span<const float> logits(const ForwardBatch& batch,
                                const kernels::AttentionMethod& attention) override {
    wait();
    return inner_->logits(batch, attention);
  }
  bool count_rows(std::span<int64_t> by_layer) override { return inner_->count_rows(by_layer); }
  void reserve_states(int64_t rows) override { inner_->reserve_states(rows); }
  void keep_states(const ForwardBatch& batch, const kernels::AttentionMethod& attention, int64_t first_state,
                   std::span<int64_t> rows_read) override {
    wait();
    if (seen_->keeps) seen_->keeps(batch);
    inner_->keep_states(batch, attention, first_state, rows_read);
  }
  void compare_states(int64_t dense, std::span<const int64_t> sampled, int64_t rows,
                      std::span<kernels::RowDivergence> out) override {
    inner_->compare_states(dense, sampled, rows, out);
  }

 private:
  struct Result {
    std::vector<int32_t> tokens;
    std::vector<TokenChoice> choices;
  };

  void run_one() {
    const std::function<void()> next = std::move(work_.front());
    work_.pop_front();
    next();
  }

  void run(ForwardBatch batch, const kernels::AttentionMethod& attention,
           const std::vector<TokenChoice>& choices) {
    for (size_t token = 0; token < batch.chosen_before.size(); ++token) {
      if (batch.chosen_before[token] >= 0) batch.tokens[token] = chosen_.at(batch.chosen_before[token]);
    }
    batch.chosen_before.clear();
    ++seen_->ran;
    inner_->submit(batch, attention, choices);
    const std::span<const int32_t> tokens = inner_->take();
    chosen_.assign(tokens.begin(), tokens.end());
    results_.push_back({chosen_, choices});
  }

  void expect_valid(const ForwardBatch& batch, std::span<const TokenChoice> choices) const {
    ASSERT_EQ(choices.size(), batch.output_rows.size());
    std::set<int32_t> slots;
    for (const TokenChoice& choice : choices) EXPECT_TRUE(slots.insert(choice.slot).second) << choice.slot;
    std::set<int32_t> pages;
    for (int64_t b = 0; b < batch.batch(); ++b) {
      const int64_t used = pages_for(batch.lengths[b], page_size_);
      ASSERT_LE(used, batch.max_pages);
      for (int64_t i = 0; i < used; ++i) {
        const int32_t page = batch.page_table[b * batch.max_pages + i];
        EXPECT_TRUE(pages.insert(page).second) << "page " << page << " is of two sequences, or listed twice";
      }
    }
    ASSERT_TRUE(batch.chosen_before.empty() || std::ssize(batch.chosen_before) == batch.num_tokens());
    size_t choice = 0;
    for (int64_t token = 0; token < batch.num_tokens(); ++token) {
      const bool chosen = choice < choices.size() && batch.output_rows[choice] == token;
      const int32_t before = batch.chosen_before.empty() ? -1 : batch.chosen_before[token];
      if (before < 0) {
        EXPECT_GE(batch.tokens[token], 0) << "the token is neither known nor named";
      } else {
        // What is known of it: it goes on the sequence that it was chosen for.
        ASSERT_LT(before, std::ssize(last_choices_));
        ASSERT_TRUE(chosen);
        EXPECT_EQ(last_choices_[before].slot, choices[choice].slot);
        EXPECT_EQ(last_choices_[before].position + 1, choices[choice].position);
        EXPECT_EQ(last_choices_[before].draws.question, choices[choice].draws.question);
      }
      choice += chosen ? 1 : 0;
    }
  }

  std::unique_ptr<Backend> inner_;
  int32_t page_size_;
  DelayedPasses* seen_;
  std::deque<std::function<void()>> work_;
  std::deque<Result> results_;
  std::vector<TokenChoice> last_choices_;  // of the pass submitted last
  std::vector<int32_t> chosen_;            // by the pass run last
  std::vector<int32_t> taken_;
  int64_t waiting_ = 0;
};

// For engines whose backend, that of their options, is delayed; `seen` outlives them.
inline BackendMaker delayed(DelayedPasses* seen) {
  return [seen](const WeightsSource& source, const ModelConfig& config, const EngineOptions& options) {
    return std::make_unique<DelayedBackend>(make_backend(source, config, options), options.page_size, seen);
  };
}

}  // namespace allot::model
