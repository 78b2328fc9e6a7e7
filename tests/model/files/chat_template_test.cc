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

}  // namespace
}  // namespace allot::model
