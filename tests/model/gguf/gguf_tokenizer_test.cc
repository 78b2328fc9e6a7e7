#include "model/gguf/gguf_tokenizer.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "model/tokenizer.h"
#include "tests/model/files/test_directory.h"
#include "tests/model/gguf/small_gguf.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class GgufTokenizerTest : public testing::Test {
 protected:
  GgufTokenizer read(const GgufBytes& bytes, const std::string& architecture = "llama") const {
    const GgufFile file(directory_.write("x.gguf", bytes.file()));
    return read_gguf_tokenizer(file, architecture);
  }
  // As the program reads what is written.
  Tokenizer load(const GgufBytes& bytes, const std::string& architecture = "llama") const {
    const GgufTokenizer made = read(bytes, architecture);
    directory_.write("tokenizer.json", made.tokenizer.dump());
    directory_.write("tokenizer_config.json", made.tokenizer_config.dump());
    return Tokenizer::load(directory_.path());
  }
  template <class Expected = CorruptFile>
  std::string message_for(const GgufBytes& bytes) const {
    const std::string message = message_of<Expected>([&] { (void)read(bytes); });
    EXPECT_THAT(message, Names(directory_.path() / "x.gguf"));
    EXPECT_THAT(message, Not(HasSubstr("\n")));
    return message;
  }
  template <class Expected = CorruptFile, class Value>
  std::string message_with(const std::string& key, const Value& value) const {
    return message_for<Expected>(small_gguf("llama").set(key, value));
  }

  TestDirectory directory_;
};

TEST_F(GgufTokenizerTest, MergesAndTakesAddedTokensWhole) {
  const Tokenizer tokenizer = load(small_gguf("llama"));
  EXPECT_EQ(tokenizer.vocab_size(), 264);
  EXPECT_THAT(tokenizer.encode("hello"), ElementsAre(kHe, kLl, 'o'));
  EXPECT_THAT(tokenizer.encode("<s>h</s><eot><mark>"), ElementsAre(kBos, 'h', kEos, kEot, kMark));
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{kBos, kHe, kMark, 'o'}), "he<mark>o");
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{kBos, kHe}, false), "<s>he");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("naïve \n 你")), "naïve \n 你");
  EXPECT_TRUE(tokenizer.has(263));
}

TEST_F(GgufTokenizerTest, CutsAsTheNameOfThePreTokenizerSays) {
  const auto ids = [&](const char* pre, const char* text, const char* architecture = "llama") {
    return load(small_gguf("llama").set("tokenizer.ggml.pre", pre), architecture).encode(text, false);
  };
  constexpr int kSpaceOne = 262;
  // A digit by itself leaves the space in front of it alone.
  for (const char* pre : {"smollm", "starcoder", "refact"})
    EXPECT_THAT(ids(pre, " 1"), ElementsAre(' ', '1')) << pre;
  EXPECT_THAT(ids("gpt-2", " 1"), ElementsAre(kSpaceOne));
  for (const char* pre : {"llama-bpe", "llama3", "llama-v3", "qwen2", "deepseek-r1-qwen"}) {
    EXPECT_THAT(ids(pre, " 1"), ElementsAre(' ', '1')) << pre;
  }
  EXPECT_THAT(ids("qwen2", "e\u0301"), ElementsAre(0xC3, 0xA9));           // NFC
  EXPECT_THAT(ids("llama-bpe", "e\u0301"), ElementsAre('e', 0xCC, 0x81));  // none
  // What converters call what they do not know: by architecture.
  EXPECT_THAT(ids("default", " 1"), ElementsAre(kSpaceOne));
  EXPECT_THAT(ids("default", " 1", "qwen2"), ElementsAre(' ', '1'));
  EXPECT_THAT(read(small_gguf("llama").set("tokenizer.ggml.pre", "default")).notes,
              ElementsAre(HasSubstr("default")));
  EXPECT_THAT(read(small_gguf("llama")).notes, testing::IsEmpty());
}

TEST_F(GgufTokenizerTest, TokensOfLlama3NeedNoMerges) {
  GgufBytes bytes = small_gguf("llama");
  bytes.set("tokenizer.ggml.merges", std::vector<std::string>{"l l"});
  EXPECT_THAT(load(bytes).encode("he", false), ElementsAre('h', 'e'));
  bytes.set("tokenizer.ggml.pre", "llama-bpe");
  EXPECT_THAT(load(bytes).encode("he", false), ElementsAre(kHe));
}

TEST_F(GgufTokenizerTest, PutsTokensAroundTextsAsTheFileSays) {
  GgufBytes bytes = small_gguf("llama");
  EXPECT_THAT(load(bytes).encode("o"), ElementsAre('o'));
  bytes.set("tokenizer.ggml.add_bos_token", true);
  EXPECT_THAT(load(bytes).encode("o"), ElementsAre(kBos, 'o'));
  EXPECT_THAT(load(bytes).encode("o", false), ElementsAre('o'));
  bytes.set("tokenizer.ggml.add_eos_token", true);
  EXPECT_THAT(load(bytes).encode("o"), ElementsAre(kBos, 'o', kEos));
  bytes.set("tokenizer.ggml.add_bos_token", false);
  EXPECT_THAT(load(bytes).encode("o"), ElementsAre('o', kEos));
  // Llama 3 begins with its BOS unless the file says otherwise.
  bytes = small_gguf("llama").set("tokenizer.ggml.pre", "llama-bpe");
  EXPECT_THAT(load(bytes).encode("o"), ElementsAre(kBos, 'o'));
  EXPECT_THAT(load(bytes.set("tokenizer.ggml.add_bos_token", false)).encode("o"), ElementsAre('o'));
  bytes.remove("tokenizer.ggml.bos_token_id").set("tokenizer.ggml.add_bos_token", true);
  EXPECT_THAT(message_for(bytes), Names("tokenizer.ggml.bos_token_id"));
}

TEST_F(GgufTokenizerTest, KnowsWhichTokensEndAReply) {
  GgufBytes bytes = small_gguf("llama");
  EXPECT_THAT(read(bytes).ends, ElementsAre(kEos));
  bytes.set("tokenizer.ggml.eot_token_id", uint32_t{kEot}).set("tokenizer.ggml.eom_token_id", uint32_t{kEos});
  const GgufTokenizer tokenizer = read(bytes.set("tokenizer.ggml.padding_token_id", uint32_t{263}));
  EXPECT_THAT(tokenizer.ends, ElementsAre(kEos, kEot));
  EXPECT_EQ(tokenizer.bos, kBos);
  EXPECT_EQ(tokenizer.pad, 263);
  EXPECT_EQ(tokenizer.tokenizer_config["eos_token"], "</s>");
  EXPECT_EQ(tokenizer.tokenizer_config["pad_token"], "[PAD]");
}

TEST_F(GgufTokenizerTest, ATokenWithARoleIsSpecialWhateverItsType) {
  GgufBytes bytes = small_gguf("llama").set("tokenizer.ggml.eos_token_id", uint32_t{kHe});
  const Tokenizer tokenizer = load(bytes);
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{'o', kHe}), "o");
}

TEST_F(GgufTokenizerTest, KeepsTheChatTemplate) {
  EXPECT_FALSE(load(small_gguf("llama")).chat_template());
  const std::string chat = "{% for m in messages %}<s>{{ m['content'] }}\n\"\\{% endfor %}";
  EXPECT_EQ(load(small_gguf("llama").set("tokenizer.chat_template", chat)).chat_template(), chat);
}

TEST_F(GgufTokenizerTest, BytesWithoutATokenAreLeftOut) {
  GgufBytes bytes = small_gguf("llama");
  std::vector<std::string> tokens = byte_tokens();
  tokens[7] = "no byte";
  for (const char* text : {"he", "ll", "<s>", "</s>", "<eot>", "<mark>", "Ġ1", "[PAD]"})
    tokens.emplace_back(text);
  bytes.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.unknown_token_id", uint32_t{kEot});
  EXPECT_THAT(load(bytes).encode("a\x07o"), ElementsAre('a', 'o'));
}

TEST_F(GgufTokenizerTest, OtherKindsOfTokenizersAreRefusedByName) {
  EXPECT_THAT(message_with<Unsupported>("tokenizer.ggml.model", "llama"), Names("\"llama\"", "\"gpt2\""));
  EXPECT_THAT(message_with<Unsupported>("tokenizer.ggml.pre", "tekken"),
              Names("\"tekken\"", "smollm", "llama-bpe", "qwen2", "gpt-2", "default"));
}

TEST_F(GgufTokenizerTest, MissingKeysAndContradictionsAreNamed) {
  for (const char* key :
       {"tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type",
        "tokenizer.ggml.merges", "tokenizer.ggml.eos_token_id"}) {
    EXPECT_THAT(message_for(small_gguf("llama").remove(key)), Names(key));
  }
  EXPECT_THAT(message_with("tokenizer.ggml.eos_token_id", uint32_t{264}),
              Names("tokenizer.ggml.eos_token_id", 264, 263));
  EXPECT_THAT(message_with("tokenizer.ggml.tokens", std::vector<std::string>{}),
              Names("tokenizer.ggml.tokens", 0));
  EXPECT_THAT(message_with("tokenizer.ggml.token_type", std::vector<int32_t>{1, 1}),
              Names("tokenizer.ggml.token_type", 2, 264));
  EXPECT_THAT(message_with("tokenizer.ggml.token_type", std::vector<int32_t>(264, 7)),
              Names("tokenizer.ggml.token_type", 0, 7));
  std::vector<std::string> tokens(264, "twin");
  EXPECT_THAT(message_with("tokenizer.ggml.tokens", tokens),
              Names("tokenizer.ggml.tokens", "\"twin\"", 0, 1));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = i == 5 ? "" : std::to_string(i);
  EXPECT_THAT(message_with("tokenizer.ggml.tokens", tokens), Names("tokenizer.ggml.tokens", 5));
  for (const char* rule : {"h l", "he", "", "h e l", "x he"}) {
    EXPECT_THAT(message_with("tokenizer.ggml.merges", std::vector<std::string>{"h e", rule}),
                Names("tokenizer.ggml.merges", 1, '"' + std::string(rule) + '"'));
  }
  EXPECT_THAT(message_with("tokenizer.chat_template", "\xff"), Names("tokenizer.chat_template", "UTF-8"));
}

}  // namespace
}  // namespace allot::model
