#include "policy/question_allowance.h"

#include <algorithm>
#include <string>

#include "base/json.h"
#include "policy/state.h"

namespace allot::policy {
namespace {

// Proposals with few questions: until the perturbations of `auto` follow its best schedule.
constexpr int64_t kFirstProposals = 112;

}  // namespace

int32_t QuestionAllowance::next_group(int64_t proposals) const {
  if (proposals_ < kFirstProposals) return std::max(usual_ / 2, 1);
  return usual_ + static_cast<int32_t>(std::min<int64_t>(saved_ / proposals, usual_));
}

void QuestionAllowance::note(int32_t questions) {
  ++proposals_;
  saved_ += usual_ - questions;
}

nlohmann::json QuestionAllowance::save() const {
  return {{"usual", usual_}, {"proposals", proposals_}, {"saved", saved_}};
}

void QuestionAllowance::restore(const nlohmann::json& saved) {
  const int32_t usual = saved.at("usual");
  require_state(usual == usual_, "it asks " + std::to_string(usual) +
                                     " questions in an episode, and the run " + std::to_string(usual_));
  proposals_ = saved.at("proposals");
  saved_ = saved.at("saved");
  require_state(proposals_ >= 0 && saved_ >= 0, "proposals and saved questions must be at least 0");
}

}  // namespace allot::policy
