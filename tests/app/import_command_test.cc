// `allot import` from outside.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"

#include "base/file.h"
#include "model/model_config.h"
#include "tests/app/run_command.h"
#include "tests/model/gguf/small_gguf.h"
#include "tests/names.h"

namespace allot::app {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class ImportCommand : public testing::Test {
 protected:
  ImportCommand() { write_file_atomically(gguf_, model::small_gguf("llama").file()); }

  CommandResult import(std::vector<std::string> more = {}) const {
    std::vector<std::string> words = {"allot", "import", gguf_.string(), "--out", out_.string()};
    words.insert(words.end(), more.begin(), more.end());
    return run_command(words);
  }

  const fs::path directory_ = fresh_directory();
  const fs::path gguf_ = directory_ / "small.gguf";
  const fs::path out_ = directory_ / "model";
};

TEST_F(ImportCommand, WritesAModelDirectoryThatInspectAccepts) {
  const auto result = import();
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out,
              Names(out_, "LlamaForCausalLM", "bfloat16", "model.safetensors", "F32 20", "config.json"));
  EXPECT_THAT(result.err, IsEmpty());
  const auto inspected = run_command({"allot", "inspect", out_.string()});
  EXPECT_EQ(inspected.code, 0) << inspected.out << inspected.err;
  EXPECT_EQ(run_command({"allot", "tokenize", "--model", out_.string()}, "hello\n").out, "[256,257,111]\n");
}

TEST_F(ImportCommand, SaysAsJsonWhatItWrote) {
  const auto result = import({"--json", "--dtype", "float32"});
  ASSERT_EQ(result.code, 0) << result.err;
  const auto summary = nlohmann::json::parse(result.out);
  EXPECT_EQ(summary["directory"], out_.string());
  EXPECT_EQ(summary["dtype"], "float32");
  EXPECT_EQ(summary["tensors"], 20);
  EXPECT_EQ(summary["types"], nlohmann::json({{"F32", 20}}));
  EXPECT_EQ(summary["weight_bytes"], 4 * summary["parameters"].get<int64_t>());
  EXPECT_EQ(summary["documents"]["config.json"], fs::file_size(out_ / "config.json"));
  EXPECT_EQ(model::read_model_config(out_).stored_dtype, "float32");
}

TEST_F(ImportCommand, ADryRunSaysWhatWouldBeWrittenAsAConfigFile) {
  const auto result = import({"--dry-run"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(StartsWith("# "), Names("LlamaForCausalLM", "tokenizer.json")));
  EXPECT_FALSE(fs::exists(out_));
  write_file_atomically(directory_ / "import.conf", result.out);
  const auto again = run_command({"allot", "import", "--config", (directory_ / "import.conf").string()});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_TRUE(fs::exists(out_ / "model.safetensors"));
}

TEST_F(ImportCommand, FaultsAreOneLineAndLeaveNothing) {
  const std::string bytes = read_file(gguf_);
  write_file_atomically(gguf_, bytes.substr(0, bytes.size() / 2));
  auto result = import();
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, AllOf(StartsWith("allot import: "), Names(gguf_, "truncated")));
  EXPECT_EQ(result.err.find('\n'), result.err.size() - 1);
  EXPECT_FALSE(fs::exists(out_));

  write_file_atomically(out_ / "notes.txt", "mine");
  result = import();
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, Names(out_, "not empty"));
  EXPECT_EQ(import({"--dry-run"}).code, 1);
  EXPECT_EQ(run_command({"allot", "import", gguf_.string()}).code, 2);
  EXPECT_EQ(import({"--dtype", "int8"}).code, 2);
}

}  // namespace
}  // namespace allot::app
