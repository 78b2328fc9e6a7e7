#include "worker/engine_generator.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/file.h"
#include "base/temporary_directory.h"

namespace allot::worker {
namespace {

// The embedded model's shape and tokenizer, with weights made at random for ten times as many tokens.
class WideModel : public TemporaryDirectory {
 public:
  WideModel() {
    const auto original = std::filesystem::path(ALLOT_SOURCE_DIR) / "assets/tiny-gsm";
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
      std::filesystem::copy(original / file, path() / file);
    std::string config = read_file(original / "config.json");
    const std::string rows = "\"vocab_size\": 99";
    config.replace(config.find(rows), rows.size(), "\"vocab_size\": 990");
    write_file_atomically(path() / "config.json", config);
  }
};

TEST(EngineGenerator, TokensThatTheTokenizerLacksStandForNoText) {
  const WideModel model;
  EngineGenerator generator(model.path(), {.random_weights = 1, .max_sequences = 4},
                            {.sampling = {.temperature = 1}, .max_new_tokens = 20});
  int asked = 0;  // whether a reply is complete
  for (uint64_t id = 0; id < 4; ++id) {
    generator.submit({.id = id,
                      .text = "Tom has 3 apples.",
                      .samples = {},
                      .key = {},
                      .question = static_cast<uint32_t>(id),
                      .complete =
                          [&](std::string_view) {
                            ++asked;
                            return false;
                          },
                      .completing = "abcdefghijklmnopqrstuvwxyz0123456789 "});
  }
  std::vector<evaluation::Reply> replies;
  while (replies.size() < 4) {
    for (evaluation::Reply& reply : generator.step()) replies.push_back(std::move(reply));
  }
  EXPECT_GT(asked, 0);
  for (const evaluation::Reply& reply : replies) {
    EXPECT_EQ(reply.output_tokens, 20);
    EXPECT_LT(reply.text.size(), 20u) << "nine of ten tokens have no text; those that have are one character";
  }
}

}  // namespace
}  // namespace allot::worker
