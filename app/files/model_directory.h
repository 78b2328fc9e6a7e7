// A model directory made from another one: what a schedule's config.json stands in, so that an engine loads
// both together. The other directory is never written to.
#pragma once

#include <filesystem>

namespace allot::app {

// Links every file of the directory `model` but its config.json into `directory`, which is created when
// needed, and refuses to change a file there that is no link: InvalidArgument, naming it. Links are absolute
// and lead to the files themselves, so a model behind links of a cache is complete, too. Throws StorageError.
void link_model(const std::filesystem::path& model, const std::filesystem::path& directory);

// The same without the weights: model.safetensors is written there with the adapter merged
// (merged_checkpoint.h), in place of one that an earlier export merged, and config.json is a copy of the
// model's. Throws InvalidArgument where another model.safetensors or a file that is no link is there, and the
// errors of write_merged_checkpoint.
void merge_model(const std::filesystem::path& model, const std::filesystem::path& adapter,
                 const std::filesystem::path& directory);

}  // namespace allot::app
