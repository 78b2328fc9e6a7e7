#include "model/chat_template.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "tests/message_of.h"
#include "tests/model/files/test_directory.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using Json = nlohmann::ordered_json;

std::filesystem::path chat_data() {
  return std::filesystem::path(ALLOT_SOURCE_DIR) / "tests/data/chat";
}

// Conversations of text alone, without tools, as serve has them.
TEST(ChatTemplate, AsksAsTransformersDoesOnTheDateOfRuns) {
  const Json document = Json::parse(read_file(chat_data() / "expected.json"));
  for (const auto& [name, expected] : document.at("templates").items()) {
    SpecialTokens tokens;
    for (const auto& [token, text] : expected.at("tokens").items()) tokens.emplace_back(token, text);
    const ChatTemplate chat(read_file(chat_data() / (name + ".jinja")), tokens);
    for (const char* title : {"user", "turns", "characters"}) {
      std::vector<ChatMessage> messages;
      for (const Json& message : document.at("conversations").at(title).at("messages"))
        messages.push_back({message.at("role"), message.at("content")});
      EXPECT_EQ(chat.prompt(messages, date_of_runs()), expected.at("texts").at(title).at(0))
          << name << ", " << title;
    }
  }
}

TEST(ChatTemplate, ATextThatIsNotUtf8IsRefused) {
  const ChatTemplate chat("{{ messages[0].content }}", {});
  const ChatMessage message{.role = "user", .content = "ab\xff"};
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                (void)chat.prompt({&message, 1}, date_of_runs());
              }),
              Names("content", 0, 2, 3));
}

// Adds <s> in front of every text, as tokenizers of Llama do.
void write_tokenizer_with_bos(const TestDirectory& directory) {
  Json file = Json::parse(R"({
      "version": "1.0", "normalizer": null, "decoder": null,
      "added_tokens": [{"id": 0, "content": "<s>", "special": true, "normalized": false}],
      "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": false},
      "post_processor": {"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
      "model": {"type": "WordLevel", "vocab": {"<s>": 0, "a": 1, "b": 2, "?": 3}, "unk_token": "?"}})");
  directory.write("tokenizer.json", file.dump());
}

TEST(PromptEncoder, AMessageHasTheTokensOfItsTemplateAndNoSecondBos) {
  const TestDirectory directory;
  write_tokenizer_with_bos(directory);
  directory.write("tokenizer_config.json",
                  R"({"bos_token": "<s>", "chat_template": "{{ bos_token }}{{ messages[0].content }}b"})");
  const Tokenizer tokenizer = Tokenizer::load(directory.path());
  EXPECT_EQ(PromptEncoder(tokenizer, PromptForm::kText).encode(tokenizer, "a"), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(PromptEncoder(tokenizer, PromptForm::kMessage).encode(tokenizer, "a"),
            (std::vector<int32_t>{0, 1, 2}));
}

TEST(PromptEncoder, ASystemMessageComesBeforeTheUsers) {
  const TestDirectory directory;
  write_tokenizer_with_bos(directory);
  directory.write("tokenizer_config.json",
                  R"({"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"})");
  const Tokenizer tokenizer = Tokenizer::load(directory.path());
  EXPECT_EQ(PromptEncoder(tokenizer, PromptForm::kMessage, "b").encode(tokenizer, "a"),
            (std::vector<int32_t>{2, 1}));
  EXPECT_EQ(PromptEncoder(tokenizer, PromptForm::kMessage).encode(tokenizer, "a"), (std::vector<int32_t>{1}));
}

TEST(PromptEncoder, AMessageNeedsATemplateThatRuns) {
  const TestDirectory directory;
  write_tokenizer_with_bos(directory);
  const auto refusal = [&] {
    const Tokenizer tokenizer = Tokenizer::load(directory.path());
    return message_of<Unsupported>([&] { PromptEncoder(tokenizer, PromptForm::kMessage); });
  };
  EXPECT_THAT(refusal(), Names("chat_template.jinja", "plain"));
  directory.write("chat_template.jinja", "\n{% include 'x' %}");
  EXPECT_THAT(refusal(), Names("include", 2, 4));
}

// A token for each of a to j and for [ and ], and BOS in front of a text.
Tokenizer letters_tokenizer(const TestDirectory& directory) {
  Json vocabulary = {{"<s>", 0}, {"?", 1}, {"[", 2}, {"]", 3}};
  for (char letter = 'a'; letter <= 'j'; ++letter) vocabulary[std::string(1, letter)] = 4 + letter - 'a';
  Json file = Json::parse(R"({
      "version": "1.0", "normalizer": null, "decoder": {"type": "Fuse"},
      "added_tokens": [{"id": 0, "content": "<s>", "special": true, "normalized": false}],
      "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": false},
      "post_processor": {"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}}})");
  file["model"] = {{"type", "WordLevel"}, {"vocab", vocabulary}, {"unk_token", "?"}};
  directory.write("tokenizer.json", file.dump());
  directory.write("tokenizer_config.json",
                  R"({"bos_token": "<s>", "chat_template": "{{ bos_token }}[[{{ messages[0].content }}]]"})");
  return Tokenizer::load(directory.path());
}

TEST(PromptEncoder, ATextThatIsTooLongLosesItsMiddle) {
  const TestDirectory directory;
  const Tokenizer tokenizer = letters_tokenizer(directory);
  constexpr int64_t kAny = 1'000'000;
  bool cut = false;
  const auto encoded = [&](PromptForm form, int64_t text_tokens, int64_t prompt_tokens,
                           const std::string& text) {
    const PromptEncoder encoder(tokenizer, form, "",
                                PromptRoom{.text_tokens = text_tokens, .prompt_tokens = prompt_tokens});
    const std::vector<int32_t> ids = encoder.encode(tokenizer, text, &cut);
    return tokenizer.decode(ids, /*skip_special_tokens=*/false);
  };
  using enum PromptForm;
  EXPECT_EQ(encoded(kText, kAny, kAny, "abcdefghij"), "<s>abcdefghij");
  EXPECT_EQ(encoded(kText, 11, 11, "abcdefghij"), "<s>abcdefghij") << "BOS and ten letters";
  EXPECT_FALSE(cut);
  // The published rule: the tokens of the text with BOS, its first n // 2 and its last n - n // 2.
  EXPECT_EQ(encoded(kText, 10, kAny, "abcdefghij"), "<s>abcdfghij");
  EXPECT_TRUE(cut);
  EXPECT_EQ(encoded(kText, 7, kAny, "abcdefghij"), "<s>abghij");
  EXPECT_EQ(encoded(kText, kAny, 7, "abcdefghij"), "<s>abghij");
  EXPECT_EQ(encoded(kMessage, 11, kAny, "abcdefghij"), "<s>[[abcdefghij]]");
  EXPECT_FALSE(cut);
  EXPECT_EQ(encoded(kMessage, 6, kAny, "abcdefghij"), "<s>[[abhij]]") << "the markup is not of the text";
  EXPECT_EQ(encoded(kMessage, 6, 15, "abcdefghij"), "<s>[[abhij]]");
  EXPECT_EQ(encoded(kMessage, 10, 11, "abcdefghij"), "<s>[[abghij]]")
      << "room for the markup is taken off the text";
  EXPECT_EQ(encoded(kMessage, kAny, 6, "abcdefghij"), "<s>[[j]]");
  EXPECT_TRUE(cut);
  EXPECT_EQ(encoded(kMessage, kAny, 2, "ab"), "<s>[[ab]]") << "the markup alone has five";
  EXPECT_FALSE(cut);
}

// Halves that begin or end within a character have U+FFFD there, which may be more tokens than it stands for.
TEST(PromptEncoder, APromptWhoseCharactersWereTornIsCountedAgain) {
  const TestDirectory directory;
  directory.write("tokenizer.json", Json::parse(read_file(std::filesystem::path(ALLOT_SOURCE_DIR) /
                                                          "tests/data/tokenizer/gpt2.json"))
                                        .at("tokenizer")
                                        .dump());
  const Tokenizer tokenizer = Tokenizer::load(directory.path());
  std::string text;
  for (int i = 0; i < 30; ++i) text += "\u20ac\U0001f642";
  const std::vector<int32_t> whole = tokenizer.encode(text);
  int longer = 0;  // rooms for which one count is not enough
  for (int64_t room = 16; room < 80; ++room) {
    std::vector<int32_t> ends(whole.begin(), whole.begin() + room / 2);
    ends.insert(ends.end(), whole.end() - (room - room / 2), whole.end());
    longer += std::ssize(tokenizer.encode(tokenizer.decode(ends))) > room;
    const PromptEncoder encoder(tokenizer, PromptForm::kText, "",
                                PromptRoom{.text_tokens = room, .prompt_tokens = room});
    const int64_t tokens = std::ssize(encoder.encode(tokenizer, text));
    EXPECT_LE(tokens, room);
    EXPECT_GE(tokens, room - 12);
  }
  EXPECT_GT(longer, 10);
}

}  // namespace
}  // namespace allot::model
