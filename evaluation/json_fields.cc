#include "evaluation/json_fields.h"

#include <fmt/ranges.h>

#include "base/ascii.h"
#include "episode/samples.h"

namespace allot::evaluation {
namespace {

// A value at this address means that the field was missing, which has already been reported.
const nlohmann::ordered_json kMissing;

}  // namespace

std::string shown(const nlohmann::ordered_json& value) {
  constexpr size_t kLongest = 80;  // a quoted SHA-256 fits
  std::string text = value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "…";
}

std::optional<std::string> joined_lines(const nlohmann::ordered_json& list, bool numbers) {
  if (!list.is_array() || list.empty()) return std::nullopt;
  std::vector<std::string> lines;
  for (const nlohmann::ordered_json& one : list) {
    if (numbers && one.is_number())
      lines.push_back(one.dump());
    else if (one.is_string() && !trim(one.get_ref<const std::string&>()).empty())
      lines.push_back(one.get<std::string>());
    else
      return std::nullopt;
  }
  return fmt::format("{}", fmt::join(lines, "\n"));
}

nlohmann::ordered_json parse_document(std::string_view text, const std::string& place) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw CorruptFile(fmt::format("{}: not JSON", place));
  return json;
}

nlohmann::ordered_json parse_document(std::string_view text, int version, const std::string& place) {
  nlohmann::ordered_json json = parse_document(text, place);
  if (json.is_object() && json.contains("schema_version") && json["schema_version"] != version)
    throw Unsupported(
        fmt::format("{}: 'schema_version' is {}, this allot reads {}; use the allot that wrote the file",
                    place, shown(json["schema_version"]), version));
  return json;
}

JsonFields::JsonFields(const Json& object, std::string path, std::vector<std::string>* faults)
    : object_(object), path_(std::move(path)), faults_(*faults) {
  if (!object_.is_object())
    unexpected(path_.empty() ? "the file" : fmt::format("'{}'", path_), object_, "an object");
}

JsonFields::~JsonFields() {
  if (!object_.is_object()) return;
  for (const auto& [name, value] : object_.items()) {
    if (!known_.contains(name)) fault(where(name) + " is not a field of this format");
  }
}

bool JsonFields::has(const char* name) {
  known_.insert(name);
  return object_.is_object() && object_.contains(name);
}

const JsonFields::Json& JsonFields::value(const char* name) {
  if (has(name)) return object_.at(name);
  if (object_.is_object()) fault(where(name) + " is missing");
  return kMissing;
}

std::string JsonFields::text(const char* name) {
  const Json& found = value(name);
  if (found.is_string() && !found.get_ref<const std::string&>().empty()) return found.get<std::string>();
  unexpected(where(name), found, "a text that is not empty");
  return {};
}

std::string JsonFields::sha256(const char* name) {
  const Json& found = value(name);
  if (found.is_string()) {
    const auto& hash = found.get_ref<const std::string&>();
    const bool hexadecimal = hash.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (hash.size() == 64 && hexadecimal) return hash;
  }
  unexpected(where(name), found, "64 lower-case hexadecimal digits");
  return {};
}

std::vector<int32_t> JsonFields::samples(const char* name, int32_t least) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  const Json& found = value(name);
  const std::string expected = fmt::format("an integer >= {} or \"{}\"", least, kExactLayerText);
  std::vector<int32_t> entries;
  if (!found.is_array()) {
    unexpected(where(name), found, "a list of integers");
    return entries;
  }
  for (const Json& entry : found) {
    if (entry.is_string() && entry.get_ref<const std::string&>() == kExactLayerText) {
      entries.push_back(kExactLayer);
      continue;
    }
    const std::string place = where(fmt::format("{}[{}]", name, entries.size()));
    entries.push_back(static_cast<int32_t>(checked_integer(entry, place, least, kMax, expected)));
  }
  return entries;
}

double JsonFields::real(const char* name, double min, double max) {
  return checked_real(value(name), where(name), min, max);
}

std::pair<double, double> JsonFields::interval(const char* name, double min, double max) {
  const Json& found = value(name);
  if (!found.is_array() || found.size() != 2) {
    unexpected(where(name), found, "a list of two numbers");
    return {min, max};
  }
  const std::pair ends(checked_real(found[0], where(name), min, max),
                       checked_real(found[1], where(name), min, max));
  if (ends.first > ends.second) unexpected(where(name), found, "the lower end first");
  return ends;
}

bool JsonFields::flag(const char* name) {
  const Json& found = value(name);
  if (found.is_boolean()) return found.get<bool>();
  unexpected(where(name), found, "true or false");
  return false;
}

void JsonFields::unexpected(const std::string& place, const Json& found, const std::string& expected) {
  if (&found == &kMissing) return;
  fault(fmt::format("{} is {}, expected {}", place, shown(found), expected));
}

int64_t JsonFields::checked_integer(const Json& found, const std::string& place, int64_t min, int64_t max,
                                    const std::string& expected) {
  // A number too large for int64 is kept by the parser as unsigned or as a float; both fail here.
  if (found.is_number_integer() && !(found.is_number_unsigned() && found.get<uint64_t>() > uint64_t(max))) {
    const auto number = found.get<int64_t>();
    if (number >= min && number <= max) return number;
  }
  unexpected(place, found, expected);
  return min;
}

double JsonFields::checked_real(const Json& found, const std::string& place, double min, double max) {
  if (found.is_number()) {
    const auto number = found.get<double>();
    if (number >= min && number <= max) return number;
  }
  unexpected(place, found, fmt::format("a number from {} to {}", min, max));
  return min;
}

nlohmann::ordered_json samples_json(std::span<const int32_t> samples) {
  auto list = nlohmann::ordered_json::array();
  for (const int32_t layer : samples)
    list.push_back(layer == kExactLayer ? nlohmann::ordered_json(kExactLayerText)
                                        : nlohmann::ordered_json(layer));
  return list;
}

}  // namespace allot::evaluation
