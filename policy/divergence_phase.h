// The first part of a run whose later part measures answers: finds the schedule that the second part starts
// from by divergences. Runs a DivergenceSearch (policy/divergence_search.h) with any number of proposals out,
// late, lost and unordered outcomes, then measures the candidates of the search again and takes the best.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "policy/divergence_model.h"
#include "policy/divergence_search.h"
#include "policy/policy.h"

namespace allot::policy {

class DivergencePhase {
 public:
  // Whose divergence an outcome is. The members of a batch are measured on common questions.
  struct Place {
    int64_t batch = 0;
    int32_t member = 0;
  };
  struct Asked {
    Schedule schedule;
    Place place;
  };
  enum class Told {
    kKept,     // for the step that the batch completes
    kLearned,  // it completed a batch
    kDropped,  // the batch went on without it
  };
  // What is being done, as people are shown it.
  enum class Stage { kSearch = 1, kCheck = 2, kOver = 3 };

  // Asks for at most `config.divergence_episodes` measurements. With fewer than 8 of them, or where there is
  // one schedule only, it is over at once.
  explicit DivergencePhase(const PolicyConfig& config);
  DivergencePhase(const DivergencePhase&) = delete;
  DivergencePhase& operator=(const DivergencePhase&) = delete;

  Stage stage() const;
  bool over() const { return stage() == Stage::kOver; }
  // Nothing is to be asked until outcomes come, or it is over.
  bool waits() const;
  // The next member of the batch that was begun, else of a new one around the centre as it is now. Not when
  // waits().
  Asked ask();

  // A divergence above 0; each place is told or given up once.
  Told tell(Place place, double divergence);
  Told give_up(Place place);
  // Says that a proposal asked later than all that is out was told while this waits(). After many of these
  // the batches that are out go on with what came; true when that happened now.
  bool overtaken();

  // From now on schedules keep the bounds of `config`, the phase's with other bounds (rebound()).
  void bound(const PolicyConfig& config);

  // The schedule to go on from: the start at first, then the centre of the search, at last the candidate with
  // the least divergence in rounds in which all were measured.
  Schedule best() const;
  // Whether best() rests on measurements.
  bool informed() const { return model_.measurements() > 0; }
  // What the measurements say of other totals; best() is the solution at its own. Where informed().
  LayerCosts costs() const { return anchored(model_.costs(), best(), config_.floor); }

  // Continues from what save() wrote, in an object of the same configuration that nothing was asked of: fits
  // all that was told again, in the order in which it was learned and under the bounds of the time. May throw
  // what nlohmann::json or the checks of policy/state.h throw.
  nlohmann::json save() const;
  void restore(const nlohmann::json& saved);

 private:
  struct Member {
    Schedule schedule;
    bool open = true;
    std::optional<double> divergence = {};
  };
  using Batch = std::vector<Member>;

  // Bounds and start that held until `learned` batches were learned.
  struct Earlier {
    Bounds bounds;
    Schedule start;
    int64_t learned = 0;
  };

  void begin();
  Told end(Place place, std::optional<double> divergence);
  // A step of the search, or a round of the check.
  void learn(const Batch& batch);
  void choose();

  PolicyConfig config_;
  int64_t rounds_ = 0;  // in which the candidates are measured
  DivergenceModel model_;
  std::optional<DivergenceSearch> search_;  // none where the phase was over at once
  int64_t next_batch_ = 0;                  // the steps of the search, then the rounds
  int32_t next_member_ = 0;                 // of the batch before; 0: it is complete
  std::map<int64_t, Batch> batches_;        // out, by number
  std::vector<Batch> learned_;              // in this order
  int64_t told_later_ = 0;                  // since the last batch was learned
  std::vector<Schedule> candidates_;        // once the search is done
  std::optional<Schedule> chosen_;
  std::vector<Earlier> earlier_;  // before each change of bounds, in order
};

}  // namespace allot::policy
