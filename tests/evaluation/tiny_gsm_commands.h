// Commands on the embedded model and its held-out questions, as people run them.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "tests/app/run_command.h"

namespace allot::app {

using Words = std::vector<std::string>;

inline const std::string kModel = std::string(ALLOT_SOURCE_DIR) + "/assets/tiny-gsm";
inline const std::string kData = kModel + "/heldout.jsonl";

inline CommandResult run(const std::string& command, const Words& more) {
  Words words = {"allot", command, "--model", kModel, "--data", kData};
  words.insert(words.end(), more.begin(), more.end());
  return run_command(words);
}

// The words of a command that has none in quotes.
inline Words words_of(const std::string& line) {
  Words words;
  std::istringstream command(line);
  for (std::string word; command >> word;) words.push_back(word);
  return words;
}

// Runs the command at the end of a result, which must give that result.
inline void expect_again(const std::string& result) {
  const size_t start = result.rfind("\nagain: ");
  ASSERT_NE(start, std::string::npos) << result;
  const CommandResult again = run_command(words_of(result.substr(start + 8)));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.out, result);
}

inline std::vector<nlohmann::json> json_lines(const std::string& text) {
  std::vector<nlohmann::json> rows;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    rows.push_back(nlohmann::json::parse(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return rows;
}

}  // namespace allot::app
