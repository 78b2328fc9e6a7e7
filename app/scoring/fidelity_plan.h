// What `allot analyze fidelity` is about to do: texts as token ids, and the methods and schedules under which
// they are measured. Made from its options without loading the model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "app/scoring/scoring_plan.h"
#include "evaluation/conditions.h"
#include "kernels/cache_format.h"
#include "kernels/method.h"
#include "model/tokenizer.h"

namespace allot::app {

struct FidelityPlanOptions {
  std::filesystem::path model;
  std::optional<std::filesystem::path> adapter;
  std::filesystem::path text;  // one of `text` and `data`
  std::filesystem::path data;
  evaluation::FieldNames fields;  // of the data
  std::string task = "gsm8k";
  std::string prompt_style = "auto";
  int64_t limit = 0;  // 0 = all texts
  std::optional<int64_t> tokens;
  std::optional<int64_t> prompt_tokens;
  std::string mode = "prefill";
  std::string estimators = "sys,threshold";
  kernels::AttentionMethod attention = kernels::usual_method();  // analyze names its estimators
  std::string samples;
  std::vector<std::string> schedules;
  std::string simulated_caches;
  std::string dtype = "bfloat16";
  std::string weights = "dtype";
  std::string keys = "16-bit";
  int64_t seed = 0;
  std::string device = "cpu";
  int32_t threads = 0;
  std::optional<int32_t> prefill_chunk;
};

// Declares the options above; --model is required.
void declare_fidelity_options(OptionSet* set, FidelityPlanOptions* options);
// Those of them that are not about estimators, schedules and simulated caches: model, texts, mode, dtype,
// weights, keys, seed, device.
void declare_text_options(OptionSet* set, FidelityPlanOptions* options);

// A text to be measured.
struct FidelityItem {
  std::vector<int32_t> ids = {};
  int32_t prompt_tokens = 1;
  uint32_t question = 0;  // coordinate of its draws
};

// A row of the result.
struct FidelityCase {
  kernels::AttentionMethod method;
  NamedSchedule schedule;  // never dense
};

struct FidelityPlan {
  FidelityPlanOptions options;  // as resolved
  std::vector<FidelityItem> texts;
  std::vector<FidelityCase> cases;  // by estimator, then by schedule, in the order given
  // Under each of these exact attention and all cases are measured once more, against exact attention over
  // the cache as it is.
  std::vector<kernels::CacheFormats> simulated_caches;
  // Of all cases but for the estimator. Nothing is generated, so of the generation only dtype, weights and
  // keys are known; a file of text has no task.
  evaluation::Conditions conditions;
};

// Reads the model's identity and tokenizer, the texts and the schedules; schedule files set the options that
// neither flag nor config file has set, as in adopt(). Throws the errors of the readers, InvalidArgument for
// an unknown estimator or cache format, Unsupported for a cache that the device
// does not simulate, Mismatch for schedules of another model or of contradicting conditions, and
// UsageError for options that do not fit each other.
FidelityPlan plan_fidelity(FidelityPlanOptions* options, OptionSet* set);

// Fills in the texts, and what the conditions say of them and of the seed; those of the model are there. Sets
// the options that have no value yet. Throws the errors of the readers, and UsageError as plan_fidelity().
void add_texts(FidelityPlanOptions* options, FidelityPlan* plan);

// Of the attention method, by the mode: only decoding keeps the prompt exact.
kernels::Prefill prefill_of(const FidelityPlanOptions& options);

// Pieces of `tokens` ids each, in order. The rest at the end is left out unless it is all there is.
std::vector<std::vector<int32_t>> pieces_of(const std::vector<int32_t>& ids, int64_t tokens);

// A line on what the numbers rest on.
std::string describe(const FidelityPlan& plan);

}  // namespace allot::app
