// Contexts that allot makes for the tasks that are graded as RULER's.
#include "evaluation/ruler/contexts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/sha256.h"
#include "base/temporary_directory.h"
#include "evaluation/task.h"
#include "model/tokenizer.h"
#include "tests/evaluation/expect_letters.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::evaluation::ruler {
namespace {

const std::filesystem::path kSource = ALLOT_SOURCE_DIR;

// The embedded model's, whose tokens are characters.
const model::Tokenizer& of_characters() {
  static const model::Tokenizer tokenizer = model::Tokenizer::load(kSource / "assets/tiny-gsm");
  return tokenizer;
}

// Of bytes, with merges.
const model::Tokenizer& of_bytes() {
  static const model::Tokenizer tokenizer = [] {
    const TemporaryDirectory directory;
    const auto golden = nlohmann::json::parse(read_file(kSource / "tests/data/tokenizer/llama3.json"));
    write_file_atomically(directory.path() / "tokenizer.json", golden.at("tokenizer").dump());
    return model::Tokenizer::load(directory.path());
  }();
  return tokenizer;
}

CountTokens counts_of(const model::Tokenizer& tokenizer) {
  return [&tokenizer](const std::string& text) { return std::ssize(tokenizer.encode(text)); };
}

struct Wanted {
  std::string task;
  int32_t hops = 1;
};
const std::vector<Wanted> kAll = {{"ruler-niah-multivalue"}, {"ruler-fwe"}, {"ruler-qa"}, {"ruler-qa", 2}};

LongContext context_of(const Wanted& wanted, int64_t tokens, uint32_t seed, uint32_t number,
                       const model::Tokenizer& tokenizer) {
  return make_context(
      {.kind = parse_context_kind(wanted.task), .tokens = tokens, .seed = seed, .hops = wanted.hops}, number,
      counts_of(tokenizer));
}

int count_of(const std::string& text, const std::string& what) {
  int found = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::string between(const std::string& text, const std::string& before, const std::string& behind) {
  const size_t at = text.find(before);
  EXPECT_NE(at, std::string::npos) << before;
  const size_t begin = at + before.size();
  return text.substr(begin, text.find(behind, begin) - begin);
}

// The tokens of the longest of the pieces that end with `end`.
int64_t longest_unit(const std::string& text, const std::string& end, const model::Tokenizer& tokenizer) {
  int64_t most = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t next = std::min(text.find(end, at), text.size());
    most = std::max<int64_t>(most, std::ssize(tokenizer.encode(text.substr(at, next - at) + end, false)));
    at = next + end.size();
  }
  return most;
}

void expect_length(const Wanted& wanted, int64_t tokens, const model::Tokenizer& tokenizer) {
  SCOPED_TRACE(fmt::format("{}, {} hops, {} tokens", wanted.task, wanted.hops, tokens));
  const LongContext context = context_of(wanted, tokens, 1, 3, tokenizer);
  EXPECT_EQ(context.tokens, std::ssize(tokenizer.encode(context.input)));
  EXPECT_LE(context.tokens, tokens);
  const std::string end = wanted.task == "ruler-fwe" ? " " : wanted.task == "ruler-qa" ? "\n\n" : ". ";
  EXPECT_GT(
      context.tokens + longest_unit(between(context.input, "\n\n", "\n\nQuestion: "), end, tokenizer) + 2,
      tokens);
}

TEST(RulerContexts, HaveAsManyTokensAsOneUnitOfFillerAllows) {
  for (const Wanted& wanted : kAll) {
    for (const int64_t tokens : {960, 961, 4032, 16'000}) expect_length(wanted, tokens, of_characters());
    for (const int64_t tokens : {960, 2000, 4032, 32'704}) expect_length(wanted, tokens, of_bytes());
  }
  expect_length(kAll[0], 131'008, of_bytes());
  expect_length(kAll[1], 131'008, of_bytes());
  expect_length(kAll[2], 131'008, of_bytes());
}

TEST(RulerContexts, AreFunctionsOfSeedAndNumber) {
  for (const Wanted& wanted : kAll) {
    std::set<std::string> inputs;
    for (const uint32_t seed : {0u, 1u})
      for (const uint32_t number : {0u, 1u, 17u}) {
        const LongContext context = context_of(wanted, 1500, seed, number, of_characters());
        EXPECT_EQ(context.input, context_of(wanted, 1500, seed, number, of_characters()).input);
        inputs.insert(context.input);
      }
    EXPECT_EQ(inputs.size(), 6u);
  }
}

// A seed's contexts stay what they were, on every machine and in every release.
TEST(RulerContexts, StayWhatTheyWere) {
  const LongContext needles = context_of(kAll[0], 700, 1, 0, of_characters());
  EXPECT_EQ(
      needles.input,
      "Numbers of something are hidden in the text below. Read all of it: afterwards you will be asked for them.\n\nThe clerk wrote about a brass telescope in the cellar. The tailor hid some dried lavender as the lamps were lit, and the painter carried a silver thimble. One of the numbers of the lively-galley is 2775852. One of the numbers of the lively-galley is 5359019. During the harvest, the painter carried a leather satchel. One of the numbers of the lively-galley is 8097700. One of the numbers of the lively-galley is 6729025.\n\nQuestion: Which four numbers does the text give as those of the lively-galley? Write the four numbers alone.\nAnswer:");
  const LongContext questions = context_of(kAll[2], 700, 1, 0, of_characters());
  EXPECT_EQ(
      questions.input,
      "Answer the question at the end from these documents, with the answer alone.\n\nDocument 1\nNuvin Herukus was born in Resohaven. Nuvin Herukus learned dyeing from Rugun Hojozos and has a workshop in Sonestad. The tailor hid some dried lavender as the lamps were lit, and the painter carried a silver thimble.\n\nDocument 2\nVoven Zokazes was born in Vajubach. Voven Zokazes learned thatching from Nuvin Herukus and has a workshop in Zifidale. The clerk wrote about a brass telescope in the cellar.\n\nQuestion: In which town was Voven Zokazes born?\nAnswer:");
  EXPECT_EQ(sha256_hex(context_of(kAll[1], 2000, 1, 0, of_bytes()).input),
            "f3e21e61ce20d1cd57b782d5727ff8adb2f2e5f962043104276049e8784fbdf1");
  EXPECT_EQ(sha256_hex(context_of(kAll[3], 2000, 1, 0, of_bytes()).input),
            "3c969ccf648af53ed3d0f64ca89eb1c3efd0b92a53a0875257f05a24810a8d73");
}

TEST(RulerContexts, HoldTheirAnswersOnceEach) {
  for (const uint32_t number : {0u, 1u, 2u, 3u, 4u, 5u, 6u, 7u}) {
    const LongContext needles = context_of(kAll[0], 4000, 7, number, of_bytes());
    ASSERT_EQ(needles.outputs.size(), 4u);
    for (const std::string& value : needles.outputs) {
      EXPECT_EQ(value.size(), 7u);
      EXPECT_EQ(count_of(needles.input, value), 1);
      EXPECT_EQ(count_of(needles.input, " is " + value + ". "), 1);
    }
    // Nothing else of the text is a number.
    EXPECT_EQ(std::ranges::count_if(needles.input, [](char c) { return c >= '0' && c <= '9'; }), 28);

    std::map<std::string, int> words;
    const LongContext frequent = context_of(kAll[1], 4000, 7, number, of_bytes());
    for (const std::string& word : words_of(frequent.input)) ++words[word];
    ASSERT_EQ(frequent.outputs.size(), 3u);
    int least = INT32_MAX;
    for (const std::string& word : frequent.outputs) least = std::min(least, words.at(word));
    EXPECT_GE(least, 4);
    for (const auto& [word, times] : words) {
      if (word != "...." && std::ranges::find(frequent.outputs, word) == frequent.outputs.end()) {
        EXPECT_LT(times, least) << word;
      }
    }
    EXPECT_GT(words.size(), 20u);
  }
}

// The document that begins with the name of a person.
std::string document_of(const std::string& input, const std::string& person) {
  const size_t at = input.find("\n" + person + " was born in ");
  EXPECT_NE(at, std::string::npos) << person;
  EXPECT_EQ(count_of(input, "\n" + person + " was born in "), 1);
  return input.substr(at + 1, input.find("\n\n", at) - at);
}

TEST(RulerContexts, QuestionsAreAnsweredByOneDocumentOrByTwo) {
  std::set<std::string> forms;
  for (const int32_t hops : {1, 2}) {
    for (uint32_t number = 0; number < 12; ++number) {
      const LongContext context = context_of({"ruler-qa", hops}, 6000, 2, number, of_bytes());
      ASSERT_EQ(context.outputs.size(), 1u);
      EXPECT_EQ(count_of(context.input, context.outputs[0]), 1);
      const std::string question = between(context.input, "\n\nQuestion: ", "\n");
      const bool born = question.find("was ") != std::string::npos;
      forms.insert(fmt::format("{} {}", hops, born));
      std::string person;
      if (hops == 1) {
        person = born ? between(question, "town was ", " born?") : between(question, "workshop of ", "?");
      } else {
        const std::string learner = between(question, "the one from whom ", " learned ");
        const std::string craft = between(question, learner + " learned ", born ? " born?" : "?");
        person = between(document_of(context.input, learner), learner + " learned " + craft + " from ",
                         " and has");
        EXPECT_EQ(document_of(context.input, learner).find(context.outputs[0]), std::string::npos)
            << "one document is not enough";
      }
      const std::string document = document_of(context.input, person);
      EXPECT_EQ(born ? between(document, "was born in ", ".") : between(document, "has a workshop in ", "."),
                context.outputs[0]);
    }
  }
  EXPECT_EQ(forms.size(), 4u);
}

TEST(RulerContexts, CannotBeAnsweredByGuessing) {
  for (const Wanted& wanted : kAll) {
    std::set<std::string> answers, inputs;
    for (uint32_t number = 0; number < 60; ++number) {
      const LongContext context = context_of(wanted, 960, 5, number, of_characters());
      answers.insert(context.outputs.begin(), context.outputs.end());
      inputs.insert(context.input);
    }
    EXPECT_EQ(inputs.size(), 60u);
    EXPECT_GE(answers.size(), 59 * context_of(wanted, 960, 5, 0, of_characters()).outputs.size())
        << wanted.task;
  }
}

TEST(RulerContexts, OfTooFewTokensNameTheFewest) {
  for (const Wanted& wanted : kAll) {
    const auto refusal = [&](int64_t tokens) {
      return message_of<InvalidArgument>([&] { (void)context_of(wanted, tokens, 0, 0, of_characters()); });
    };
    EXPECT_THAT(refusal(100), Names(wanted.task, 100));
    const int64_t fewest = std::stoll(between(refusal(100), "at least ", " tokens"));
    EXPECT_GT(fewest, 100);
    EXPECT_THAT(refusal(fewest - 1), Names(fewest, fewest - 1));
    EXPECT_EQ(context_of(wanted, fewest, 0, 0, of_characters()).tokens, fewest);
  }
  EXPECT_THAT(message_of<InvalidArgument>([] { (void)parse_context_kind("ruler-vt"); }),
              Names("ruler-vt", "ruler-fwe", "ruler-qa", "ruler-niah-multivalue"));
}

TEST(RulerContexts, AreGradedByTheTasksThatComeWithAllot) {
  for (const Wanted& wanted : kAll) {
    const auto task = shipped(wanted.task);
    for (uint32_t number = 0; number < 10; ++number) {
      const LongContext context = context_of(wanted, 1500, 3, number, of_bytes());
      const TemporaryDirectory directory;
      write_file_atomically(
          directory.path() / "a.jsonl",
          nlohmann::ordered_json{{"index", 0}, {"input", context.input}, {"outputs", context.outputs}}
              .dump());
      const Dataset data =
          task->load(directory.path() / "a.jsonl", {.question = "input", .answer = "outputs"});
      EXPECT_EQ(task->prompt(data.questions.at(0)), context.input);
      const auto score = [&](const std::string& reply) {
        return task->grade(data.questions[0], reply).score;
      };
      EXPECT_EQ(score(fmt::format(" {}", fmt::join(context.outputs, ", "))), 1);
      EXPECT_EQ(score(""), 0);
      EXPECT_DOUBLE_EQ(score(context.outputs[0]), 1.0 / static_cast<double>(context.outputs.size()));
      const LongContext other = context_of(wanted, 1500, 3, number + 1, of_bytes());
      EXPECT_EQ(score(fmt::format("{}", fmt::join(other.outputs, ", "))), 0)
          << "the answers of another context";
      // The question alone, which a model may repeat, is no answer.
      EXPECT_EQ(score(context.input.substr(context.input.rfind("\nQuestion: "))), 0);
    }
  }
}

}  // namespace
}  // namespace allot::evaluation::ruler
