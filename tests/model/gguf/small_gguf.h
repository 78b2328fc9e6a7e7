// A whole model in a GGUF file of some KiB: what an importer accepts, for tests that take something from it.
#pragma once

#include <string>
#include <vector>

#include "tests/model/gguf/gguf_bytes.h"

namespace allot::model {

// The 256 tokens of single bytes in the alphabet of byte-level BPE, in the order of the bytes.
std::vector<std::string> byte_tokens();

// 2 layers of 8, 2 query heads and 1 KV head of 4, 6 intermediate, 264 tokens: those of all bytes, then "he"
// and "ll", the control tokens <s>, </s> and <eot>, the user's <mark>, "Ġ1" and the unused "[PAD]". Number i
// of the n-th tensor is 1000 n + i. `architecture` is llama, qwen2 or qwen3, each with the tensors it must
// have.
GgufBytes small_gguf(const std::string& architecture);

constexpr int kHe = 256, kLl = 257, kBos = 258, kEos = 259, kEot = 260, kMark = 261;

}  // namespace allot::model
