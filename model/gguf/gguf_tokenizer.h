// The tokenizer of a GGUF file, as the files of a Hugging Face model directory. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/gguf/gguf_file.h"

namespace allot::model {

struct GgufTokenizer {
  nlohmann::ordered_json tokenizer;         // tokenizer.json
  nlohmann::ordered_json tokenizer_config;  // tokenizer_config.json, with the chat template
  std::optional<int64_t> bos;
  std::vector<int64_t> ends;  // ids that end a reply, not empty; the first is the file's eos
  std::optional<int64_t> pad;
  std::vector<std::string> notes;  // what a person should know, a line each
};

// Byte-level BPE (tokenizer.ggml.model "gpt2") with a pre-tokenizer that is known by name. `architecture` is
// general.architecture. docs/internals/gguf.md says what is taken from the file and what the name of the
// pre-tokenizer stands for. Ids are places in the list of tokens. Throws CorruptFile for a missing key, a
// wrong value, ids without a token, tokens or merges that contradict each other; Unsupported for another kind
// of tokenizer or pre-tokenizer.
GgufTokenizer read_gguf_tokenizer(const GgufFile& file, const std::string& architecture);

}  // namespace allot::model
