// The reader of safetensors files. What it accepts fills the data section, tensor by tensor.
#include "base/error.h"
#include "model/safetensors.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static allot::fuzz::MemoryFile input;
  input.set({reinterpret_cast<const char*>(data), size});
  try {
    const allot::model::SafetensorsFile file(input.path());
    size_t bytes = 0;
    uint8_t sum = 0;
    for (const allot::model::TensorView& tensor : file.tensors()) {
      allot::fuzz::require(allot::model::dtype_name(tensor.dtype) != nullptr, "a dtype has a name");
      bytes += tensor.bytes.size();
      for (const std::byte one : tensor.bytes) sum ^= static_cast<uint8_t>(one);  // touches every page
    }
    allot::fuzz::require(bytes <= size, "tensors hold no more bytes than the file");
    volatile uint8_t used = sum;
    (void)used;
  } catch (const allot::Error&) {
    // Refused with a typed error.
  }
  return 0;
}
