// Stop strings, the markup of chats, and keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/serve/api_keys.h"
#include "app/serve/chat_markup.h"
#include "app/serve/stop_scanner.h"
#include "base/error.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using ::testing::ElementsAre;

// The pieces that are shown of these.
std::vector<std::string> shown(StopScanner* scanner, const std::vector<std::string>& pieces) {
  std::vector<std::string> all;
  for (const std::string& piece : pieces) all.push_back(scanner->add(piece));
  all.push_back(scanner->rest());
  return all;
}

TEST(StopScanner, EndsBeforeAStopStringThatComesInPieces) {
  StopScanner scanner({"END", "\n\n"});
  EXPECT_THAT(shown(&scanner, {"one E", "N", "Dtwo", "three"}), ElementsAre("one ", "", "", "", ""));
  EXPECT_TRUE(scanner.stopped());
}

TEST(StopScanner, ShowsWhatOnlyLookedLikeABeginning) {
  StopScanner scanner({"aab"});
  EXPECT_THAT(shown(&scanner, {"xa", "a", "a", "c", "aa"}), ElementsAre("x", "", "a", "aac", "", "aa"));
  EXPECT_FALSE(scanner.stopped());
}

TEST(StopScanner, TheFirstInTheTextDecides) {
  StopScanner scanner({"later", "soon"});
  EXPECT_THAT(shown(&scanner, {"a soon later"}), ElementsAre("a ", ""));
}

const std::vector<ChatMessage> kTalk = {
    {"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Yes?"}, {"user", "2+2?"}};

TEST(ChatMarkup, EachFamilyHasItsOwn) {
  EXPECT_EQ(
      prompt_of(ChatMarkup::kChatMl, kTalk),
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes?"
      "<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(
      prompt_of(ChatMarkup::kLlama3, std::span(kTalk).first(2)),
      "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>"
      "\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(
      prompt_of(ChatMarkup::kDeepseek, kTalk),
      "Be brief.<｜User｜>Hi<｜Assistant｜>Yes?<｜end▁of▁sentence｜><｜User｜>2+2?<｜Assistant｜><think>\n");
  EXPECT_EQ(prompt_of(ChatMarkup::kPlain, std::span(kTalk).last(1)), "2+2?\n");
  EXPECT_THAT(message_of<InvalidArgument>([] { prompt_of(ChatMarkup::kPlain, kTalk); }), Names(4, "system"));
}

TEST(ChatMarkup, ATemplateIsKnownByItsMarksOrNotAtAll) {
  EXPECT_EQ(markup_of(std::nullopt), ChatMarkup::kPlain);
  EXPECT_EQ(markup_of("{{ '<|im_start|>' + message.role }}"), ChatMarkup::kChatMl);
  EXPECT_EQ(markup_of("{{ '<|start_header_id|>' }}"), ChatMarkup::kLlama3);
  EXPECT_EQ(markup_of("[INST] {{ message.content }} [/INST]"), std::nullopt);
}

TEST(ApiKeys, AreLinesOfAFile) {
  const TemporaryDirectory directory;
  const auto file = directory.path() / "keys";
  write_file_atomically(file, "# mine\n\n0123456789abcdef\r\nfedcba9876543210\n");
  const ApiKeys keys = ApiKeys::read(file);
  EXPECT_TRUE(keys.admits("Bearer 0123456789abcdef"));
  EXPECT_TRUE(keys.admits("Bearer fedcba9876543210"));
  EXPECT_FALSE(keys.admits("Bearer # mine"));
  EXPECT_FALSE(keys.admits("Bearer "));
  EXPECT_TRUE(ApiKeys().admits(""));
  write_file_atomically(file, "0123456789abcdef\nshort\n");
  EXPECT_THAT(message_of<CorruptFile>([&] { ApiKeys::read(file); }), Names("line 2", 16));
  write_file_atomically(file, "# none\n");
  EXPECT_THROW(ApiKeys::read(file), CorruptFile);
}

}  // namespace
}  // namespace allot::app
