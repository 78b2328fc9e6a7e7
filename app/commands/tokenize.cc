// allot tokenize: turns text lines into token ids and back, to see what a model is given. Each line of stdin
// gives one line of stdout.
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/run/model_options.h"
#include "base/error.h"
#include "base/json.h"
#include "model/tokenizer.h"

namespace allot::app {
namespace {

struct TokenizeOptions {
  std::filesystem::path model;
  bool no_special = false;
  bool decode = false;
  bool json = false;
};

std::vector<int32_t> parse_ids(const std::string& line) {
  const auto list = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  std::vector<int32_t> ids;
  bool valid = list.is_array();
  for (const auto& id : valid ? list : nlohmann::json::array()) {
    const bool in_range =
        id.is_number_unsigned() && id.get<uint64_t>() <= uint64_t{std::numeric_limits<int32_t>::max()};
    valid = valid && in_range;
    if (in_range) ids.push_back(id.get<int32_t>());
  }
  if (!valid) throw InvalidArgument("expected a JSON list of token ids, for example [1, 15, 7]");
  return ids;
}

std::string parse_text(const std::string& line) {
  const auto text = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!text.is_string())
    throw InvalidArgument("expected a JSON string, for example \"Tom has 3 apples.\\n\"");
  return text.get<std::string>();
}

std::string convert(const std::string& line, const model::Tokenizer& tokenizer,
                    const TokenizeOptions& options) {
  if (options.decode) {
    std::string text = tokenizer.decode(parse_ids(line), options.no_special);
    return options.json ? nlohmann::json(std::move(text)).dump() : text;
  }
  const std::vector<int32_t> ids =
      tokenizer.encode(options.json ? parse_text(line) : line, !options.no_special);
  return nlohmann::json(ids).dump();
}

}  // namespace

int run_tokenize(std::span<const std::string> arguments) {
  TokenizeOptions options;
  OptionSet set("tokenize", "turn text lines on stdin into JSON lists of token ids on stdout, or back",
                "echo 'Tom has 3 apples.' | allot tokenize --model assets/tiny-gsm");
  declare_model_option(
      &set, &options.model,
      "Hugging Face model, of which only the tokenizer is read: a directory, or org/name[@revision] in the local cache of the hub");
  set.flag("no-special", &options.no_special,
           "encode without the tokens that the post-processor adds; decode without special tokens");
  set.flag("decode", &options.decode, "read JSON lists of ids and write their texts");
  set.flag("json", &options.json, "texts are JSON strings, so that they can contain line breaks");
  set.require("model");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  const model::Tokenizer tokenizer = model::Tokenizer::load(options.model);
  std::string line;
  for (int64_t number = 1; std::getline(std::cin, line); ++number) {
    try {
      std::cout << convert(line, tokenizer, options) << '\n';
    } catch (const InvalidArgument& error) {
      std::cout.flush();
      throw InvalidArgument("line " + std::to_string(number) + " of stdin: " + error.what());
    }
  }
  return 0;
}

}  // namespace allot::app
