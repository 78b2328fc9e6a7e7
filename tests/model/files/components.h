// Single components beside what the `tokenizers` package does with them; tests/data/make_tokenizer_golden.py
// makes components.json.
#pragma once

#include <filesystem>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "model/json_view.h"

namespace allot::model {

// Entries {name, component, cases: [what goes in, what comes out]} of a group.
inline nlohmann::json golden_components(const std::string& group) {
  const auto path = std::filesystem::path(ALLOT_SOURCE_DIR) / "tests/data/tokenizer/components.json";
  return nlohmann::json::parse(read_file(path)).at(group);
}

// A component as the file file.json has it in the field `group`.
inline JsonView view_of(const nlohmann::json& component, const std::string& group) {
  return JsonView(component, "file.json", group);
}

inline nlohmann::json replace(const std::string& pattern, const std::string& content) {
  return {{"type", "Replace"}, {"pattern", {{"String", pattern}}}, {"content", content}};
}

}  // namespace allot::model
