// Typed reading of a JSON file. Each error says which field of which file is wrong, its value and
// what was expected.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace allot::model {

// The parsed file. Throws NotFound, or CorruptFile when it is not JSON, with the byte offset, or holds a
// number that no double can.
nlohmann::json parse_json_file(const std::filesystem::path& path);

// A value inside a parsed file, with its path ("model.merges[3]"). Refers to the document, which must outlive
// it. Every reader throws CorruptFile naming file, field, value and expectation.
class JsonView {
 public:
  JsonView(const nlohmann::json& value, std::string file, std::string field = "");

  const nlohmann::json& value() const { return *value_; }

  // A member that must be present; null counts as absent.
  JsonView at(const std::string& name) const;
  // A member that may be absent or null.
  std::optional<JsonView> find(const std::string& name) const;
  // The elements of an array.
  std::vector<JsonView> elements() const;

  const std::string& text() const;
  // A string of one character.
  const std::string& character() const;
  bool boolean() const;
  int64_t integer(int64_t min, int64_t max) const;
  double real(double min, double max) const;

  // The member's value, or `fallback` where it is absent or null.
  std::string text_or(const std::string& name, std::string fallback) const;
  bool boolean_or(const std::string& name, bool fallback) const;
  int64_t integer_or(const std::string& name, int64_t min, int64_t max, int64_t fallback) const;
  double real_or(const std::string& name, double min, double max, double fallback) const;

  // "FILE: field NAME" for messages of the caller.
  std::string where() const;
  // The value as JSON, cut to a length that fits a message.
  std::string shown() const;
  [[noreturn]] void fail(const std::string& expectation) const;

 private:
  const nlohmann::json* value_;
  std::string file_;
  std::string field_;
};

}  // namespace allot::model
