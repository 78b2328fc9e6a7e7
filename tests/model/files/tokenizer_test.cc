// What a tokenizer.json may hold and what it must not; ids themselves are compared in
// tokenizer_golden_test.cc.
#include "model/tokenizer.h"

#include <gmock/gmock.h>

#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "tests/model/files/test_directory.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

json added(int32_t id, const std::string& content) {
  return {{"id", id}, {"content", content}, {"special", true}, {"normalized", false}};
}

// One token a character, as the embedded model has it: a, b and a newline behind the special tokens.
json characters() {
  return {{"version", "1.0"},
          {"added_tokens", {added(0, "<pad>"), added(1, "<s>"), added(2, "</s>"), added(3, "<unk>")}},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "Split"},
            {"pattern", {{"Regex", R"([\s\S])"}}},
            {"behavior", "Isolated"},
            {"invert", false}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "Fuse"}}},
          {"model",
           {{"type", "WordLevel"},
            {"vocab", {{"<pad>", 0}, {"<s>", 1}, {"</s>", 2}, {"<unk>", 3}, {"a", 4}, {"b", 5}, {"\n", 6}}},
            {"unk_token", "<unk>"}}}};
}

// "ab" and "abc" by merges.
json pairs() {
  json file = characters();
  file["added_tokens"] = json::array();
  file["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  file["decoder"] = {{"type", "ByteLevel"}};
  file["model"] = {{"type", "BPE"},
                   {"vocab", {{"a", 0}, {"b", 1}, {"c", 2}, {"ab", 3}, {"abc", 4}}},
                   {"merges", {"a b", "ab c"}}};
  return file;
}

class TokenizerTest : public testing::Test {
 protected:
  Tokenizer load(const json& file) {
    directory_.write("tokenizer.json", file.dump());
    return Tokenizer::load(directory_.path());
  }
  template <typename Error>
  std::string message_for(const json& file) {
    const std::string message = message_of<Error>([&] { load(file); });
    EXPECT_THAT(message, Names(directory_.path() / "tokenizer.json"));
    EXPECT_THAT(message, testing::Not(HasSubstr("\n")));
    return message;
  }
  // The message for a good file with one place changed.
  template <typename Error>
  std::string message_for(json file, const char* place, const json& value) {
    file[json::json_pointer(place)] = value;
    return message_for<Error>(file);
  }

  TestDirectory directory_;
};

TEST_F(TokenizerTest, CharacterTokenizerEncodesAndDecodes) {
  const Tokenizer tokenizer = load(characters());
  EXPECT_THAT(tokenizer.encode("ab\na<s>é"), ElementsAre(4, 5, 6, 4, 1, 3));
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{1, 4, 5, 6, 2}), "ab\n");
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{1, 4, 5, 6, 2}, false), "<s>ab\n</s>");
  EXPECT_THAT(tokenizer.encode(""), ElementsAre());
  EXPECT_EQ(tokenizer.decode({}), "");
  EXPECT_EQ(tokenizer.vocab_size(), 7);
  EXPECT_EQ(tokenizer.id_of("</s>"), 2);
  EXPECT_EQ(tokenizer.id_of("b"), 5);
  EXPECT_EQ(tokenizer.id_of("zz"), std::nullopt);
}

TEST_F(TokenizerTest, MergesAreReadAsTextsAndAsPairs) {
  json file = pairs();
  EXPECT_THAT(load(file).encode("abcab"), ElementsAre(4, 3));
  file["model"]["merges"] = json::parse(R"([["a", "b"], ["ab", "c"]])");
  EXPECT_THAT(load(file).encode("abcab"), ElementsAre(4, 3));
}

TEST_F(TokenizerTest, AModelWithoutATypeIsTakenForBpeByItsMerges) {
  json file = pairs();
  file["model"].erase("type");
  EXPECT_THAT(load(file).encode("ab"), ElementsAre(3));
}

// "bc" is a token, but no merge makes it.
TEST_F(TokenizerTest, ATokenThatMergesDoNotReachIsTakenWholeOnlyWithIgnoreMerges) {
  json file = pairs();
  file["model"]["vocab"]["bc"] = 5;
  const Tokenizer merging = load(file);
  EXPECT_THAT(merging.encode("bc"), ElementsAre(1, 2));
  EXPECT_THAT(merging.encode("bc"), ElementsAre(1, 2));  // the outcome that the first call left behind
  file["model"]["ignore_merges"] = true;
  EXPECT_THAT(load(file).encode("bc"), ElementsAre(5));
}

TEST_F(TokenizerTest, OneTokenizerServesManyThreads) {
  const Tokenizer tokenizer = load(pairs());
  std::vector<int> equal(4, 0);
  std::vector<std::thread> threads;
  for (int& count : equal) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        count += tokenizer.encode("abc") == std::vector<int32_t>{4};
        count += tokenizer.encode("abcab") == std::vector<int32_t>{4, 3};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(equal, testing::Each(1000));
}

TEST_F(TokenizerTest, TextThatIsNotUtf8IsRefusedWithTheByteOffset) {
  const Tokenizer tokenizer = load(characters());
  struct Case {
    std::string text;
    int offset;
  };
  const Case cases[] = {{"ab\xFFz", 2},
                        {"\x80", 0},
                        {"0123456789ab\xC0\xAF", 12},
                        {"\xED\xA0\x80", 0},  // a surrogate
                        {"a\xF4\x90\x80\x80", 1},
                        {"\xF0\x8F\xBF\xBF", 0},  // beyond U+10FFFF, overlong
                        {"caf\xC3", 3},
                        {"\xE2\x82", 0}};
  for (const Case& bad : cases) {
    EXPECT_THAT(message_of<InvalidArgument>([&] { tokenizer.encode(bad.text); }),
                Names("UTF-8", bad.offset, bad.text.size()));
  }
}

TEST_F(TokenizerTest, AnIdOutsideTheVocabularyIsRefusedWithItsSize) {
  const Tokenizer tokenizer = load(characters());
  for (const int32_t id : {7, -1, 1'000'000'000}) {
    EXPECT_THAT(message_of<InvalidArgument>([&] {
                  (void)tokenizer.decode(std::vector<int32_t>{4, id});
                }),
                Names(id, 7));
  }
}

TEST_F(TokenizerTest, AWordThatNothingStandsForIsRefused) {
  json file = characters();
  file["model"]["unk_token"] = "<none>";
  const Tokenizer tokenizer = load(file);
  EXPECT_THAT(message_of<InvalidArgument>([&] { tokenizer.encode("aé"); }), Names("\"é\"", "<none>"));
}

TEST_F(TokenizerTest, AMissingFileIsNotFoundAndABrokenOneCorrupt) {
  EXPECT_THAT(message_of<NotFound>([&] { Tokenizer::load(directory_.path()); }), Names("tokenizer.json"));
  directory_.write("tokenizer.json", "{\"model\": ");
  EXPECT_THAT(message_of<CorruptFile>([&] { Tokenizer::load(directory_.path()); }), Names("JSON"));
}

TEST_F(TokenizerTest, UnsupportedComponentsAreRefusedByTypeWithTheSupportedOnes) {
  EXPECT_THAT(
      message_for<Unsupported>(characters(), "/model", {{"type", "Unigram"}, {"vocab", {{"a", -1.5}}}}),
      Names("Unigram", "BPE", "WordLevel"));
  EXPECT_THAT(message_for<Unsupported>(characters(), "/normalizer", {{"type", "Lowercase"}}),
              Names("Lowercase", "NFC", "Prepend", "Replace"));
  EXPECT_THAT(message_for<Unsupported>(characters(), "/pre_tokenizer", {{"type", "Punctuation"}}),
              Names("Punctuation", "ByteLevel", "Metaspace", "Split"));
  EXPECT_THAT(message_for<Unsupported>(characters(), "/decoder", {{"type", "WordPiece"}}),
              Names("WordPiece", "Fuse", "Strip"));
  EXPECT_THAT(message_for<Unsupported>(characters(), "/post_processor", {{"type", "BertProcessing"}}),
              Names("BertProcessing", "TemplateProcessing"));
  const json inner = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", "NFKC"}}}}};
  EXPECT_THAT(message_for<Unsupported>(characters(), "/normalizer", inner),
              Names("normalizer.normalizers[1]", "NFKC"));
}

TEST_F(TokenizerTest, ByteLevelMustBeTheLastPreTokenizerAndNeedsBpe) {
  const json bytes = pairs()["pre_tokenizer"];
  EXPECT_THAT(
      message_for<Unsupported>(pairs(), "/pre_tokenizer",
                               {{"type", "Sequence"}, {"pretokenizers", {bytes, {{"type", "Digits"}}}}}),
      Names("pre_tokenizer.pretokenizers[1]", "Digits", "ByteLevel"));
  EXPECT_THAT(message_for<Unsupported>(characters(), "/pre_tokenizer", bytes),
              Names("ByteLevel", "WordLevel"));
}

TEST_F(TokenizerTest, BpeOptionsThatChangeIdsAreRefused) {
  EXPECT_THAT(message_for<Unsupported>(pairs(), "/model/dropout", 0.1), Names("model.dropout", 0.1));
  EXPECT_THAT(message_for<Unsupported>(pairs(), "/model/continuing_subword_prefix", "##"),
              Names("model.continuing_subword_prefix", "\"##\""));
  EXPECT_THAT(message_for<Unsupported>(pairs(), "/model/end_of_word_suffix", "</w>"),
              Names("model.end_of_word_suffix", "\"</w>\""));
}

TEST_F(TokenizerTest, AByteWithoutATokenIsDroppedBehindByteLevelWithoutFallbackOrUnk) {
  json file = pairs();
  file["model"]["byte_fallback"] = true;
  EXPECT_THAT(load(file).encode("abzc"), ElementsAre(4));
  // The alphabet's character for a zero byte is U+0100, C4 80.
  file["model"]["vocab"].update({{"<0xC4>", 5}, {"<0x80>", 6}, {"<0x00>", 7}});
  EXPECT_THAT(load(file).encode(std::string("ab\0c", 4)), ElementsAre(3, 5, 6, 2));
  EXPECT_THAT(load(file).encode("abzc"), ElementsAre(4));
}

// Where a Replace has joined characters, the package holds a stretch of text for one that starts later.
TEST_F(TokenizerTest, PrependingToTheFirstSectionNeedsANormalizerThatKeepsTheStart) {
  json file = characters();
  file["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}};
  file["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "aa"}}}, {"content", "b"}};
  EXPECT_THAT(message_for<Unsupported>(file), Names("normalizer", "Metaspace", "first"));
  file["pre_tokenizer"]["prepend_scheme"] = "always";
  file["model"]["vocab"]["_b"] = 7;
  EXPECT_THAT(load(file).encode("aa"), ElementsAre(7));
}

TEST_F(TokenizerTest, AnAddedTokenThatTheNormalizerLeavesNothingOfIsFoundNowhere) {
  json file = characters();
  file["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", ""}};
  file["added_tokens"].push_back({{"id", 7}, {"content", "aa"}, {"normalized", true}});
  const Tokenizer tokenizer = load(file);
  EXPECT_THAT(tokenizer.encode("baab"), ElementsAre(5, 5));
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{5, 7, 5}), "bb");
  EXPECT_EQ(tokenizer.vocab_size(), 8);
}

// The package looks for the token's text, which the normalizer has changed, among the special ones.
TEST_F(TokenizerTest, ASpecialTokenThatTheNormalizerChangesIsNotLeftOut) {
  json file = characters();
  file["normalizer"] = {{"type", "Prepend"}, {"prepend", "a"}};
  file["added_tokens"].push_back({{"id", 7}, {"content", "<x>"}, {"special", true}, {"normalized", true}});
  const Tokenizer tokenizer = load(file);
  EXPECT_THAT(tokenizer.encode("<x>b"), ElementsAre(7, 5));
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{1, 7, 5}), "a<x>b");
}

TEST_F(TokenizerTest, PatternsWithoutAFaithfulTranslationAreRefused) {
  for (const char* pattern : {"(", "[a[b]]", "[a&&b]", "(?m:a)", "(?<name>a)", R"(\R)", R"(a\)", R"([\W])",
                              R"(\p{Nonsense})", "[]a]", R"(\xFF)", "(*UTF)a"}) {
    EXPECT_THAT(message_for<Unsupported>(characters(), "/pre_tokenizer/pattern/Regex", pattern),
                HasSubstr(std::string("pattern ") + pattern));
  }
}

TEST_F(TokenizerTest, FieldsOfTheWrongKindAreCorruptByPlace) {
  EXPECT_THAT(message_for<CorruptFile>(characters(), "/pre_tokenizer/behavior", "Apart"),
              Names("pre_tokenizer.behavior", "Apart"));
  EXPECT_THAT(message_for<CorruptFile>(characters(), "/pre_tokenizer/pattern", json::object()),
              Names("pre_tokenizer.pattern.String", "missing"));
  EXPECT_THAT(message_for<CorruptFile>(characters(), "/model/unk_token", nullptr),
              Names("model.unk_token", "missing"));
  EXPECT_THAT(message_for<CorruptFile>(characters(), "/model/vocab", json::array()),
              Names("model.vocab", "[]"));
  EXPECT_THAT(message_for<CorruptFile>(characters(), "/model/vocab/a", -4), Names("\"a\"", -4));
  EXPECT_THAT(message_for<CorruptFile>(characters(), "/model/vocab/a", 4'000'000'000u),
              Names("\"a\"", 4'000'000'000u));
  EXPECT_THAT(message_for<CorruptFile>(characters(), "/model/vocab/a", 5), Names(5, "\"a\"", "\"b\""));
  EXPECT_THAT(message_for<CorruptFile>(characters(), "/model", nullptr), Names("model", "missing"));
}

TEST_F(TokenizerTest, BadMergesAreCorruptWithTheirNumber) {
  EXPECT_THAT(message_for<CorruptFile>(pairs(), "/model/merges/1", "ab z"),
              Names("model.merges[1]", "\"ab z\"", "\"z\""));
  EXPECT_THAT(message_for<CorruptFile>(pairs(), "/model/merges/1", "b c"),
              Names("model.merges[1]", "\"bc\""));
  EXPECT_THAT(message_for<CorruptFile>(pairs(), "/model/merges/0", "a b c"),
              Names("model.merges[0]", "a b c"));
  EXPECT_THAT(message_for<CorruptFile>(pairs(), "/model/merges/0", 7), Names("model.merges[0]", 7));
  EXPECT_THAT(message_for<CorruptFile>(pairs(), "/model/unk_token", "<unk>"),
              Names("model.unk_token", "<unk>"));
}

TEST_F(TokenizerTest, AddedTokensThatContradictTheVocabularyAreCorrupt) {
  EXPECT_THAT(message_for<CorruptFile>(characters(), "/added_tokens/1", added(9, "<s>")),
              Names("added_tokens[1].id", 9, "<s>", "model.vocab", 1));
  EXPECT_THAT(message_for<CorruptFile>(characters(), "/added_tokens/1", added(4, "<new>")),
              Names("added_tokens[1].id", 4, "\"a\""));
  EXPECT_THAT(message_for<CorruptFile>(characters(), "/added_tokens/1", added(0, "<pad>")),
              Names("added_tokens[1].content", "<pad>"));
  EXPECT_THAT(message_for<CorruptFile>(characters(), "/added_tokens/1", added(1, "")),
              Names("added_tokens[1].content", "\"\"", "empty"));
}

TEST_F(TokenizerTest, TemplatesAreChecked) {
  const json sequence = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const json token = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
  const json ids = {{"<s>", {{"id", "<s>"}, {"ids", {1}}, {"tokens", {"<s>"}}}}};
  const auto processor = [&](const json& single, const json& tokens) {
    return json{
        {"type", "TemplateProcessing"}, {"single", single}, {"pair", single}, {"special_tokens", tokens}};
  };
  json file = characters();
  file["post_processor"] = processor({token, sequence, token}, ids);
  EXPECT_THAT(load(file).encode("a"), ElementsAre(1, 4, 1));
  EXPECT_THAT(load(file).encode("a", false), ElementsAre(4));
  EXPECT_THAT(
      message_for<CorruptFile>(characters(), "/post_processor", processor({token, sequence}, json::object())),
      Names("post_processor.special_tokens.<s>", "missing"));
  EXPECT_THAT(message_for<Unsupported>(characters(), "/post_processor", processor(json::array({token}), ids)),
              Names("post_processor.single", "0 times"));
  json beyond = ids;
  beyond["<s>"]["ids"] = {99};
  EXPECT_THAT(message_for<CorruptFile>(characters(), "/post_processor", processor({token, sequence}, beyond)),
              Names("token id 99"));
}

// DeepSeek-R1-Distill-Qwen-7B: the post-processor adds nothing, tokenizer_config.json asks for the token.
TEST_F(TokenizerTest, ALlamaTokenizersConfigMayPutTheBosTokenFirst) {
  const auto config = [&](const char* tokenizer_class, const json& bos, bool add) {
    directory_.write(
        "tokenizer_config.json",
        json({{"tokenizer_class", tokenizer_class}, {"bos_token", bos}, {"add_bos_token", add}}).dump());
  };
  config("LlamaTokenizerFast", {{"content", "<s>"}}, true);
  EXPECT_EQ(load(characters()).encode("ab"), (std::vector<int32_t>{1, 4, 5}));
  EXPECT_EQ(load(characters()).encode("ab", false), (std::vector<int32_t>{4, 5}));
  config("LlamaTokenizerFast", "<s>", true);
  EXPECT_EQ(load(characters()).encode("ab"), (std::vector<int32_t>{1, 4, 5}));
  config("LlamaTokenizerFast", "<s>", false);
  EXPECT_EQ(load(characters()).encode("ab"), (std::vector<int32_t>{4, 5}));
  config("PreTrainedTokenizerFast", "<s>", true);
  EXPECT_EQ(load(characters()).encode("ab"), (std::vector<int32_t>{4, 5}));
  config("LlamaTokenizer", "<bos>", true);
  EXPECT_THAT(message_of<CorruptFile>([&] { load(characters()); }),
              Names("bos_token", "<bos>", "tokenizer.json"));
}

TEST_F(TokenizerTest, ABosTokenThatThePostProcessorAddsComesOnce) {
  json file = characters();
  file["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"pair", json::array()},
      {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {1}}, {"tokens", {"<s>"}}}}}}};
  directory_.write("tokenizer_config.json",
                   R"({"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>", "add_bos_token": true})");
  EXPECT_EQ(load(file).encode("ab"), (std::vector<int32_t>{1, 4, 5}));
}

TEST_F(TokenizerTest, TheChatTemplateComesFromItsFileElseFromTheTokenizersConfig) {
  EXPECT_EQ(load(characters()).chat_template(), std::nullopt);
  directory_.write("tokenizer_config.json", R"({"chat_template": "from config"})");
  EXPECT_EQ(load(characters()).chat_template(), "from config");
  directory_.write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "x"},
                                                                  {"name": "default", "template": "the default"}]})");
  EXPECT_EQ(load(characters()).chat_template(), "the default");
  directory_.write("chat_template.jinja", "from its file");
  EXPECT_EQ(load(characters()).chat_template(), "from its file");
  std::filesystem::remove(directory_.path() / "chat_template.jinja");
  directory_.write("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_THAT(message_of<CorruptFile>([&] { load(characters()); }),
              Names("tokenizer_config.json", "chat_template", 5));
}

TEST_F(TokenizerTest, SpecialTokensHaveTheNamesOfTheTokenizersConfig) {
  EXPECT_THAT(load(characters()).special_tokens(), ElementsAre());
  directory_.write("tokenizer_config.json", R"({"eos_token": {"content": "</s>"}, "bos_token": "<s>",
                                                "pad_token": null, "chat_token": "x"})");
  directory_.write("special_tokens_map.json", R"({"bos_token": "<b>", "pad_token": {"content": "<pad>"}})");
  using Named = SpecialTokens::value_type;
  EXPECT_THAT(
      load(characters()).special_tokens(),
      ElementsAre(Named("bos_token", "<b>"), Named("eos_token", "</s>"), Named("pad_token", "<pad>")));
  directory_.write("tokenizer_config.json", R"({"bos_token": "<s>", "added_tokens_decoder": {}})");
  EXPECT_THAT(load(characters()).special_tokens(), ElementsAre(Named("bos_token", "<s>")));
}

}  // namespace
}  // namespace allot::model
