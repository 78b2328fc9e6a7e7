// The reader of GGUF files, every number in their tensors, and the model directory that would be made of
// them.
#include <bit>

#include "base/error.h"
#include "model/gguf/gguf_file.h"
#include "model/gguf/import.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

namespace allot::fuzz {
namespace {

size_t numbers_in(const model::ImportedTensor& tensor) {
  size_t numbers = 0;
  uint32_t bits = 0;
  model::for_each_piece(tensor, [&](std::span<const float> piece) {
    numbers += piece.size();
    for (const float number : piece) bits ^= std::bit_cast<uint32_t>(number);
  });
  volatile uint32_t used = bits;
  (void)used;
  return numbers;
}

void look_at_tensors(const model::GgufFile& file, size_t size) {
  size_t bytes = 0;
  for (const model::GgufTensor& tensor : file.tensors()) {
    bytes += tensor.bytes.size();
    require(file.find_tensor(tensor.name) == &tensor, "a tensor is found by its name");
    const size_t numbers = numbers_in({.name = tensor.name, .source = &tensor});
    require(numbers * tensor.layout->bytes == tensor.bytes.size() * tensor.layout->elements,
            "a tensor has the numbers of its blocks");
  }
  require(bytes <= size, "tensors hold no more bytes than the file");
}

void plan(const model::GgufFile& file) {
  const model::ImportPlan plan = model::plan_import(file, model::TensorDType::kBF16);
  size_t numbers = 0;
  for (const model::ImportedTensor& tensor : plan.tensors) numbers += numbers_in(tensor);
  require(numbers == static_cast<size_t>(plan.parameters()), "the numbers are those that were planned");
  require(plan.documents.size() == 4, "a plan has every document");
}

}  // namespace
}  // namespace allot::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static allot::fuzz::MemoryFile input;
  input.set({reinterpret_cast<const char*>(data), size});
  try {
    const allot::model::GgufFile file(input.path());
    allot::fuzz::look_at_tensors(file, size);
    allot::fuzz::plan(file);
  } catch (const allot::Error&) {
    // Refused with a typed error.
  }
  return 0;
}
