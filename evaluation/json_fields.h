// Reads one JSON object field by field and collects everything that is wrong with it, so that a person can
// repair a file in one go.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace allot::evaluation {

// A value as messages show it: the file's text, shortened.
std::string shown(const nlohmann::ordered_json& value);

// The entries of a list, a line each: texts that are not blank, and with `numbers` also numbers, in their
// shortest form. Nothing where it is no such list, or an empty one.
std::optional<std::string> joined_lines(const nlohmann::ordered_json& list, bool numbers);

// The value in `text`. Throws CorruptFile naming `place` where it is no JSON.
nlohmann::ordered_json parse_document(std::string_view text, const std::string& place);
// The same of a file that has one version: throws Unsupported where its 'schema_version' is another. That it
// is there is for the reader of the fields to see.
nlohmann::ordered_json parse_document(std::string_view text, int version, const std::string& place);

// Each reader returns the field or, after it has noted a fault, an empty or smallest value. Fields that no
// reader asked for are faults too, noted by the destructor.
class JsonFields {
 public:
  using Json = nlohmann::ordered_json;

  // `path` names the object in messages ("attention"; empty for the whole file). `object` and
  // `faults` outlive this.
  JsonFields(const Json& object, std::string path, std::vector<std::string>* faults);
  ~JsonFields();
  JsonFields(const JsonFields&) = delete;
  JsonFields& operator=(const JsonFields&) = delete;

  bool has(const char* name);
  // A fault when the field is missing.
  const Json& value(const char* name);
  // The fields of an object within this one.
  JsonFields object(const char* name) { return {value(name), full(name), &faults_}; }
  std::string text(const char* name);    // not empty
  std::string sha256(const char* name);  // 64 lower-case hexadecimal digits
  template <class Integer>
  Integer integer(const char* name, Integer min, Integer max = std::numeric_limits<Integer>::max()) {
    const bool bounded = max != std::numeric_limits<Integer>::max();
    return static_cast<Integer>(checked_integer(
        value(name), where(name), min, max,
        bounded ? fmt::format("an integer {} to {}", min, max) : fmt::format("an integer >= {}", min)));
  }
  // The entries of a schedule: a number of at least `least`, or "exact" for kExactLayer.
  std::vector<int32_t> samples(const char* name, int32_t least);
  double real(const char* name, double min, double max);
  std::pair<double, double> interval(const char* name, double min, double max);  // the lower end first
  bool flag(const char* name);

  // Reads a name by `parse`, which throws InvalidArgument listing the known names.
  template <class Parse>
  auto named(const char* name, Parse parse) -> decltype(parse(std::string())) {
    const std::string found = text(name);
    try {
      if (!found.empty()) return parse(found);
    } catch (const InvalidArgument& error) {
      fault(fmt::format("{}: {}", where(name), error.what()));
    }
    return {};
  }

  std::string full(const std::string& name) const { return path_.empty() ? name : path_ + "." + name; }
  // The field as messages name it: 'attention.tile'.
  std::string where(const std::string& name) const { return fmt::format("'{}'", full(name)); }
  // Notes a fault that a reader found between fields.
  void fault(std::string text) { faults_.push_back(std::move(text)); }

 private:
  void unexpected(const std::string& place, const Json& found, const std::string& expected);
  int64_t checked_integer(const Json& found, const std::string& place, int64_t min, int64_t max,
                          const std::string& expected);
  double checked_real(const Json& found, const std::string& place, double min, double max);

  const Json& object_;
  std::string path_;
  std::vector<std::string>& faults_;
  std::set<std::string> known_;
};

// Numbers of samples as JsonFields::samples reads them.
nlohmann::ordered_json samples_json(std::span<const int32_t> samples);

}  // namespace allot::evaluation
