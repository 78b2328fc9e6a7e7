// Two candidates scored on the same questions time and again, while both may change: which of them the
// answers themselves prefer.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>

namespace allot::policy {

class Race {
 public:
  // A reward of the first (0) or second (1) candidate on the questions of `group`. Without one it was lost,
  // and the pair with it.
  void tell(int64_t group, int candidate, std::optional<double> reward);
  // How many standard errors the second candidate is ahead on average; far behind until there are four pairs.
  // Old pairs fade: after 33 newer ones a pair counts a third.
  double second_lead() const;

  nlohmann::json save() const;
  // May throw what nlohmann::json throws.
  void restore(const nlohmann::json& saved);

 private:
  struct Half {
    int candidate = 0;
    std::optional<double> reward = {};
  };
  std::map<int64_t, Half> halves_;  // by group: the one that came first
  double pairs_ = 0;                // faded, as are the sums
  double sum_ = 0;                  // of the second's reward minus the first's
  double squares_ = 0;
};

}  // namespace allot::policy
