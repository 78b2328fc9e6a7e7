// A checkpoint with an adapter merged into it, for engines that know no adapters. Torch-free.
#pragma once

#include <filesystem>

namespace allot::model {

// Writes the weights of the model directory `model` with the adapter in `adapter` merged into them as the
// safetensors file `out`, which must not exist. Every tensor keeps its dtype; what the adapter changes is
// added in float32 and rounded once, so in that dtype the file holds the weights that an engine with the
// adapter computes with. Tensors that the decoder does not read (a tied output matrix) are left out. Throws
// the errors of Adapter::open and WeightsSource, and StorageError.
void write_merged_checkpoint(const std::filesystem::path& model, const std::filesystem::path& adapter,
                             const std::filesystem::path& out);

}  // namespace allot::model
