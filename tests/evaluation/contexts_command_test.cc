// allot contexts, as people run it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/json.h"
#include "evaluation/task.h"
#include "tests/app/run_command.h"
#include "tests/evaluation/expect_letters.h"
#include "tests/evaluation/tiny_gsm_commands.h"
#include "tests/names.h"

namespace allot::app {
namespace {

CommandResult contexts(const Words& more) {
  Words words = {"allot", "contexts", "--model", kModel};
  words.insert(words.end(), more.begin(), more.end());
  return run_command(words);
}

TEST(ContextsCommand, WritesTheLinesThatItsTasksRead) {
  for (const char* name : {"ruler-niah-multivalue", "ruler-fwe", "ruler-qa"}) {
    const CommandResult result =
        contexts({"--task", name, "--tokens", "1024", "--count", "3", "--seed", "5"});
    ASSERT_EQ(result.code, 0) << result.err;
    const std::vector<nlohmann::json> rows = json_lines(result.out);
    ASSERT_EQ(rows.size(), 3u);
    const std::filesystem::path file = fresh_directory() / "contexts.jsonl";
    write_file_atomically(file, result.out);
    const auto task = evaluation::shipped(name);
    const evaluation::Dataset data = task->load(file, {.question = "input", .answer = "outputs"});
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i].size(), 4u);
      EXPECT_EQ(rows[i].at("index"), i);
      const std::string input = rows[i].at("input");
      // BOS, a token a character, and the 64 of the reply.
      EXPECT_EQ(rows[i].at("length"), 1 + input.size() + 64);
      EXPECT_LE(rows[i].at("length"), 1024);
      EXPECT_GE(rows[i].at("length"), 1024 - 250);
      EXPECT_EQ(task->prompt(data.questions.at(i)), input);
      std::string reply;
      for (const std::string& answer : rows[i].at("outputs").get<std::vector<std::string>>())
        reply += answer + ' ';
      EXPECT_EQ(task->grade(data.questions[i], reply).score, 1) << name;
      EXPECT_EQ(task->grade(data.questions[i], "").score, 0);
    }
    // A context depends on its number alone.
    const CommandResult fewer = contexts({"--task", name, "--tokens", "1024", "--count", "2", "--seed", "5"});
    EXPECT_EQ(fewer.out, result.out.substr(0, fewer.out.size()));
    EXPECT_NE(contexts({"--task", name, "--tokens", "1024", "--count", "3"}).out, result.out)
        << "another seed";
  }
}

TEST(ContextsCommand, SaysWhatItCannotMake) {
  const CommandResult few = contexts({"--task", "ruler-qa", "--tokens", "200"});
  EXPECT_EQ(few.code, 2);
  EXPECT_THAT(few.err, Names("ruler-qa", "--tokens", 200, 64));
  EXPECT_EQ(few.out, "");
  const CommandResult hops = contexts({"--task", "ruler-fwe", "--hops", "2"});
  EXPECT_EQ(hops.code, 2);
  EXPECT_THAT(hops.err, Names("--hops", "ruler-qa", "ruler-fwe"));
  const CommandResult other = contexts({"--task", "gsm8k"});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, Names("gsm8k", "ruler-fwe"));
  const Words two = {"--task", "ruler-qa", "--tokens", "1024", "--count", "1"};
  Words hop = two;
  hop.insert(hop.end(), {"--hops", "2"});
  EXPECT_NE(contexts(hop).out, contexts(two).out);
}

}  // namespace
}  // namespace allot::app
