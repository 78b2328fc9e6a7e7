// Where a decoder's weights come from: the safetensors of a checkpoint, perhaps with an adapter merged into
// them, or random numbers. A loader asks for tensors by the names they have in a checkpoint and gets each
// one's shape and either its bytes or the generator of its elements, so that it can copy or generate straight
// to the tensor's final place. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kernels/estimator.h"
#include "model/adapter.h"
#include "model/low_rank_update.h"
#include "model/model_config.h"
#include "model/model_split.h"
#include "model/random_weights.h"
#include "model/safetensors.h"
#include "model/tensor_shapes.h"
#include "model/ternary.h"

namespace allot::model {

struct WeightTensor {
  std::string name;
  std::vector<int64_t> shape;
  TensorDType dtype = TensorDType::kF32;  // F32, BF16 or F16, of the bytes; generated elements are float32
  // The bytes, row major and little endian, not aligned, valid as long as the source; or the generator
  // of the elements; or packed ones, valid as long.
  std::variant<std::span<const std::byte>, RandomTensor, PackedTernary> elements;
  // Of stored bytes: what is added to them. Valid as long as the source.
  std::optional<LowRankUpdate> update = std::nullopt;
  // Of stored bytes: how they are rounded to ternary weights.
  std::optional<TernaryRounding> rounding = std::nullopt;
  // Where the tensor is a part of the one in the checkpoint, or of the one that is made: its elements there.
  // `elements` and `update` are those of the whole.
  std::optional<ElementRuns> part = std::nullopt;

  int64_t count() const;
};

// Rows first .. first + count - 1 of a tensor that is whole; count may be 0.
WeightTensor rows_of(WeightTensor whole, int64_t first, int64_t count);

// What a rank has of a tensor of the decoder's layers: rows of q, k, v, gate and up, columns of o and down.
// Biases of o and down are those of rank 0 and zeros on the others, which are added to it. All of any other
// tensor. Ranks divide what is shared out (check_split).
WeightTensor part_of(WeightTensor whole, const ModelSplit& split);

// Bytes of all tensors of a decoder of this configuration in `dtype`.
int64_t weight_bytes(const ModelConfig& config, kernels::DType dtype);

// Safe to use by several threads at once.
class WeightsSource {
 public:
  // The checkpoint in `directory`, with `adapter`, which was opened for `config`, merged into it. Where the
  // configuration has ternary weights, those of the layers' projections are ternary. Throws the errors of
  // Checkpoint::open.
  static WeightsSource checkpoint(const std::filesystem::path& directory, const ModelConfig& config,
                                  std::optional<Adapter> adapter = std::nullopt);
  // Norm weights are 1, all other elements random with standard deviation config.initializer_range, biases
  // among them, and projections that would be ternary. A function of seed, configuration and name alone.
  static WeightsSource random(uint64_t seed, const ModelConfig& config);

  // Reads all of a ternary tensor. Throws CorruptFile when the checkpoint lacks the tensor or packed weights
  // hold a number other than -1, 0 and 1; Unsupported when its shape or dtype is not the
  // architecture's, naming the tensor, what was found and what was expected; and InvalidArgument when a
  // decoder of this configuration has no tensor of this name.
  WeightTensor at(const std::string& name) const;

 private:
  WeightsSource(std::variant<Checkpoint, uint64_t> origin, const ModelConfig& config,
                std::optional<Adapter> adapter);

  WeightTensor packed(const std::string& name, const std::vector<int64_t>& shape) const;

  std::variant<Checkpoint, uint64_t> origin_;  // or the seed
  std::optional<Adapter> adapter_;
  std::optional<TernaryWeights> ternary_;
  double random_deviation_;
  std::map<std::string, std::vector<int64_t>> shapes_;
};

// Writes elements [first, first + count) of `tensor` to `out` as `dtype`, rounded to nearest even where
// that is narrower. An update is added in float32 before (add_elements) or a rounding to ternary weights
// done, so that an element does not depend on the range it is written in. 0 <= first <= first + count <=
// tensor.count(). `out` has count elements and is aligned for them.
void write_elements(const WeightTensor& tensor, int64_t first, int64_t count, kernels::DType dtype,
                    std::byte* out);

}  // namespace allot::model
