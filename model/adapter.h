// A LoRA adapter as PEFT saves it: adapter_config.json and adapter_model.safetensors in a directory. It is
// merged into the weights when they are read (weights_source.h); nothing of it remains at run time.
// Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "model/low_rank_update.h"
#include "model/model_config.h"
#include "model/safetensors.h"

namespace allot::model {

// A linear module with its update.
struct AdaptedModule {
  int64_t rank = 0;
  double alpha = 0;
  LowRankUpdate update;  // scaling is alpha / rank, with rank-stabilised LoRA alpha / sqrt(rank)
};

class Adapter {
 public:
  // Opens and checks everything, so that the adapter can be merged into a decoder of this configuration. The
  // tensors decide which modules are adapted, and each of them is used. rank_pattern and alpha_pattern hold
  // for modules as in PEFT. Throws NotFound when one of the two files is missing; CorruptFile (bad JSON or
  // safetensors, an impossible field, half of a pair, ranks that disagree); Unsupported for another kind of
  // adapter, for one that does more than add B A, for a tensor that is not known, and for an adapter of
  // another base: a module that the decoder has not, or another shape.
  static Adapter open(const std::filesystem::path& directory, const ModelConfig& config,
                      MappingAccess access = MappingAccess::kWhole);

  // What is added to the decoder's tensor of this name ("model.layers.0.self_attn.q_proj.weight"); nothing
  // where the adapter leaves it as it is. Its views live as long as the adapter.
  std::optional<LowRankUpdate> update_of(const std::string& tensor) const;
  // By name ("model.layers.0.self_attn.q_proj"); at least one.
  const std::map<std::string, AdaptedModule>& modules() const { return modules_; }

  // The adapter's name for people, and SHA-256 over every tensor's name, dtype, shape and a fixed sample of
  // its bytes, and every module's scaling: equal for adapters that add the same.
  AdapterIdentity identity() const;
  bool rank_stabilised() const { return rank_stabilised_; }
  // base_model_name_or_path, for people; may be empty.
  const std::string& base_model() const { return base_model_; }

 private:
  Adapter(std::filesystem::path directory, SafetensorsFile file);

  std::filesystem::path directory_;
  SafetensorsFile file_;
  bool rank_stabilised_ = false;
  std::string base_model_;
  std::map<std::string, AdaptedModule> modules_;
};

}  // namespace allot::model
