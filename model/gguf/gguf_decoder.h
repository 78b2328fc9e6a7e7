// The decoder of a GGUF file under the names, shapes and fields of a Hugging Face checkpoint. Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/gguf/gguf_file.h"

namespace allot::model {

// A tensor of the checkpoint and where its numbers are.
struct ImportedTensor {
  std::string name;  // "model.layers.0.self_attn.q_proj.weight"
  const GgufTensor* source = nullptr;
  // In how many heads the rows of `source` lie in the order of GGML's rotary embedding, in which the two
  // channels that turn together are neighbours; in a checkpoint they are half a head apart. 0: nowhere.
  int64_t interleaved_heads = 0;
};

struct GgufDecoder {
  std::string architecture;       // "LlamaForCausalLM"
  nlohmann::ordered_json config;  // config.json without ids of tokens and dtype
  std::vector<ImportedTensor> tensors;
  std::vector<std::string> notes;  // what a person should know, a line each
};

// Throws Unsupported for an architecture, rope scaling, sliding
// window, experts or tensors that a checkpoint of these architectures cannot express, naming what is
// supported; CorruptFile for a missing key, a value out of range, a missing tensor or one whose shape is not
// what the metadata call for.
GgufDecoder read_gguf_decoder(const GgufFile& file);

// The row of `source` that becomes row `row` of the checkpoint's tensor: `heads` heads of an even number of
// rows each, `rows` in all.
int64_t interleaved_row(int64_t row, int64_t heads, int64_t rows);

}  // namespace allot::model
