// How many questions the learner `auto` asks of its schedules. While layers are to be told apart, many
// schedules on few questions each say more than few schedules on many: what each layer does is a mean over
// all of them. What that saves is spent on the schedules that follow, which lie around the best one known and
// differ less. So a run of n episodes never asks for more questions than n episodes of usual size have.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

namespace allot::policy {

class QuestionAllowance {
 public:
  // `usual`: that the run asks in an episode, at least 1.
  explicit QuestionAllowance(int32_t usual) : usual_(usual) {}

  // Of each of the `proposals` of a group that begins: from half to twice the usual number.
  int32_t next_group(int64_t proposals) const;
  // A proposal was asked of so many questions.
  void note(int32_t questions);

  nlohmann::json save() const;
  // Into an allowance of the same usual number. May throw what nlohmann::json or the checks of
  // policy/state.h throw.
  void restore(const nlohmann::json& saved);

 private:
  int32_t usual_;
  int64_t proposals_ = 0;  // asked
  int64_t saved_ = 0;      // questions fewer than as many proposals of the usual number have, at least 0
};

}  // namespace allot::policy
