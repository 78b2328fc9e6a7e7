// A GGUF file as a Hugging Face model directory: what `allot import` writes. Torch-free.
// docs/internals/gguf.md says what is supported and what was chosen where others differ.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "model/gguf/gguf_decoder.h"
#include "model/gguf/gguf_file.h"
#include "model/safetensors.h"

namespace allot::model {

struct ImportPlan {
  std::string architecture;  // "LlamaForCausalLM"
  TensorDType dtype = TensorDType::kBF16;
  std::vector<ImportedTensor> tensors;  // of model.safetensors, in file order; they refer to the GgufFile
  // Every other file by its name: config.json, generation_config.json, tokenizer.json, tokenizer_config.json.
  std::map<std::string, std::string> documents;
  std::vector<std::string> notes;  // what a person should know, a line each

  int64_t parameters() const;
  uint64_t weight_bytes() const;  // of the tensors in `dtype`
};

// Everything but the numbers, which are not read. `dtype` is F32, BF16 or F16. Throws the errors of
// read_gguf_decoder and read_gguf_tokenizer.
ImportPlan plan_import(const GgufFile& file, TensorDType dtype);

// The numbers of the tensor as float32, its rows in the checkpoint's order, in pieces of whole rows of at
// most 4 MiB (a longer row is a piece of its own).
void for_each_piece(const ImportedTensor& tensor, const std::function<void(std::span<const float>)>& use);

// Throws InvalidArgument for a directory that holds something, and for what is no directory.
void require_new_or_empty(const std::filesystem::path& directory);

// Called with the bytes of weights that are written, and all there are.
using ImportProgress = std::function<void(uint64_t written, uint64_t wanted)>;

// Writes the plan into `directory`, which must not exist or be empty. The files are made in a directory
// beside it, DIRECTORY.partial-PID, which gets the name when the readers of this program have accepted it
// (config, weights, tokenizer); when something fails it is removed. Numbers are rounded to the dtype, to
// nearest even. Throws the errors of require_new_or_empty and of those readers, StorageError, Unsupported for
// a number beyond float16's range, and what `progress` throws.
void write_import(const ImportPlan& plan, const std::filesystem::path& directory,
                  const ImportProgress& progress = {});

}  // namespace allot::model
