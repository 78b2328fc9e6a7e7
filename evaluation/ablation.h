// One-hot ablation (S2ANTA paper, Appendix J): one sample in one layer at a time, the other layers at a base
// schedule, and how much accuracy that costs. Shows which layers need attention samples. The same for one KV
// head at a time, which the paper does not do: one sample for its query heads, the layer's other heads at the
// base. No model here: the caller scores the schedules.
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

// The same for a KV head of a layer: the schedule has [layers, num_kv_heads] entries.
policy::Schedule one_hot_head(const policy::Schedule& base, int layer, int kv_head, int num_kv_heads);

struct LayerAblation {
  int32_t layer = 0;
  int32_t kv_head = -1;  // -1 = the whole layer
  Accuracy accuracy = {};
  double drop = 0;              // accuracy of the base minus accuracy with this layer or head ablated
  Interval drop_interval = {};  // 95 %, as in PairedTest
  double p_value = 1;           // of the drop, as in PairedTest
  friend bool operator==(const LayerAblation&, const LayerAblation&) = default;
};

struct Ablation {
  Conditions conditions;  // measured_on is there; nothing was learned
  std::string tool_version;
  policy::Schedule base;
  Accuracy base_accuracy;
  int32_t kv_heads = 0;               // of a layer, where heads were ablated; 0 = whole layers were
  std::vector<LayerAblation> layers;  // [layers of `base`], or [layers, kv_heads]
  friend bool operator==(const Ablation&, const Ablation&) = default;
};

// Puts scores together. `base_scores` [questions] and `layer_scores` [layers][questions], with `kv_heads`
// above 0 [layers * kv_heads][questions], are in [0, 1], for the same questions in the same order; partial
// credit counts. Throws InvalidArgument when the sizes do not fit.
Ablation make_ablation(Conditions conditions, policy::Schedule base, std::span<const double> base_scores,
                       const std::vector<std::vector<double>>& layer_scores, int32_t kv_heads = 0);

// The differences for which an ablation says nothing about a run: all that decide results, where an ablation
// may have asked the questions that the run learned on as well as those that it was verified on.
std::vector<Difference> differences_from_run(const Conditions& ablation, const Conditions& run);

// ablation.json: one object with the fields above and schema_version 2, or 3 where the base has exact layers,
// or 4 where KV heads were ablated. The same content gives the same bytes.
std::string format_ablation(const Ablation& ablation);
// Inverse of format_ablation; also reads schema version 1, which says less of the conditions. Throws
// CorruptFile naming `place` and everything that is wrong, Unsupported for another schema version.
Ablation parse_ablation(std::string_view text, const std::string& place);
// Throws NotFound, and what parse_ablation throws.
Ablation read_ablation(const std::filesystem::path& file);

}  // namespace allot::evaluation
