// The reader of tokenizer.json and the tokenizer that it makes. An input is the file, then, after a zero
// byte, a text to encode; ids that a tokenizer gives are ids that it can decode.
#include <string_view>
#include <vector>

#include "base/error.h"
#include "model/tokenizer.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

namespace allot::fuzz {
namespace {

constexpr std::string_view kText = "Hello, wo\u0308rld! 12345\n\n  <s>x</s>\u4f60";

struct Directory {
  Directory() { links.link("tokenizer.json", file); }
  MemoryFile file;
  LinkDirectory links;
};

void encode_and_decode(const model::Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  try {
    ids = tokenizer.encode(text);
  } catch (const Error&) {
    return;  // not UTF-8, or a piece that the vocabulary has no id for
  }
  (void)tokenizer.decode(ids, false);
  (void)tokenizer.decode(ids, true);
}

}  // namespace
}  // namespace allot::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static allot::fuzz::Directory directory;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t separator = input.find('\0');
  directory.file.set(input.substr(0, separator));
  try {
    const auto tokenizer = allot::model::Tokenizer::load(directory.links.path());
    allot::fuzz::encode_and_decode(tokenizer, allot::fuzz::kText);
    if (separator != std::string_view::npos)
      allot::fuzz::encode_and_decode(tokenizer, input.substr(separator + 1));
  } catch (const allot::InvalidArgument& error) {
    allot::fuzz::require(false, std::string("ids of a tokenizer can be decoded: ") + error.what());
  } catch (const allot::Error&) {
    // The file was refused with a typed error.
  }
  return 0;
}
