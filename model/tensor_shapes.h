// Which tensors a decoder has. Torch-free.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "model/model_config.h"

namespace allot::model {

// Every tensor that a decoder of this configuration has, by its name in a checkpoint. Of packed ternary
// weights the shape is that of the weights, four times as many rows as are stored, and their weight_scale is
// part of them.
std::map<std::string, std::vector<int64_t>> decoder_tensor_shapes(const ModelConfig& config);

// "[2, 3]", as messages show a shape.
std::string shape_text(std::span<const int64_t> shape);

}  // namespace allot::model
