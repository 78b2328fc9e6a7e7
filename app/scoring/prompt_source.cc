#include "app/scoring/prompt_source.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"

namespace allot::app {
namespace {

std::string field_of(const std::string& line, const std::string& place, const std::string& field) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    throw CorruptFile(fmt::format("{} is no JSON object; expected one with the string \"{}\", or no --field",
                                  place, field));
  }
  const auto found = json.find(field);
  if (found == json.end() || !found->is_string())
    throw CorruptFile(fmt::format("{} has no string \"{}\", which --field names", place, field));
  return found->get<std::string>();
}

}  // namespace

std::vector<GivenPrompt> read_prompts(std::istream& in, const std::string& place, const std::string& field) {
  std::vector<GivenPrompt> prompts;
  std::string line;
  for (uint32_t number = 0; std::getline(in, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    const std::string here = fmt::format("{}, line {}", place, number + 1);
    prompts.push_back({number, field.empty() ? line : field_of(line, here, field)});
  }
  if (prompts.empty()) throw CorruptFile(place + " has no prompt; expected one a line");
  return prompts;
}

}  // namespace allot::app
