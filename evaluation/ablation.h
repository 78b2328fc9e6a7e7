// One-hot ablation (S2ANTA paper, Appendix J): one sample in one layer at a time, the other layers at a base
// schedule, and how much accuracy that costs. Shows which layers need attention samples. No model here: the
// caller scores the schedules.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "evaluation/accuracy.h"
#include "evaluation/conditions.h"
#include "policy/schedule.h"

namespace allot::evaluation {

// `base` with one sample in `layer`, in place of exact attention where it has that.
policy::Schedule one_hot(const policy::Schedule& base, int layer);

struct LayerAblation {
  int32_t layer = 0;
  Accuracy accuracy = {};
  double drop = 0;              // accuracy of the base minus accuracy with this layer ablated
  Interval drop_interval = {};  // 95 %, as in PairedTest
  double p_value = 1;           // of the drop, as in PairedTest
  friend bool operator==(const LayerAblation&, const LayerAblation&) = default;
};

struct Ablation {
  Conditions conditions;  // measured_on is there; nothing was learned
  std::string tool_version;
  policy::Schedule base;
  Accuracy base_accuracy;
  std::vector<LayerAblation> layers;  // in layer order, one per layer of `base`
  friend bool operator==(const Ablation&, const Ablation&) = default;
};

// Puts scores together. `base_scores` [questions] and `layer_scores` [layers][questions] are in [0, 1], for
// the same questions in the same order; partial credit counts. Throws InvalidArgument when the sizes do not
// fit.
Ablation make_ablation(Conditions conditions, policy::Schedule base, std::span<const double> base_scores,
                       const std::vector<std::vector<double>>& layer_scores);

// The differences for which an ablation says nothing about a run: all that decide results, where an ablation
// may have asked the questions that the run learned on as well as those that it was verified on.
std::vector<Difference> differences_from_run(const Conditions& ablation, const Conditions& run);

// ablation.json: one object with the fields above and schema_version 2, or 3 where the base has exact layers.
// The same content gives the same bytes.
std::string format_ablation(const Ablation& ablation);
// Inverse of format_ablation; also reads schema version 1, which says less of the conditions. Throws
// CorruptFile naming `place` and everything that is wrong, Unsupported for another schema version.
Ablation parse_ablation(std::string_view text, const std::string& place);
// Throws NotFound, and what parse_ablation throws.
Ablation read_ablation(const std::filesystem::path& file);

}  // namespace allot::evaluation
