#include "model/gguf/gguf_field.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "model/utf8.h"

namespace allot::model {
namespace {

struct TypeInfo {
  GgufType type;
  const char* name;
  uint64_t bytes;
};
constexpr TypeInfo kTypes[] = {
    {GgufType::kUint8, "uint8", 1},     {GgufType::kInt8, "int8", 1},     {GgufType::kUint16, "uint16", 2},
    {GgufType::kInt16, "int16", 2},     {GgufType::kUint32, "uint32", 4}, {GgufType::kInt32, "int32", 4},
    {GgufType::kFloat32, "float32", 4}, {GgufType::kBool, "bool", 1},     {GgufType::kString, "string", 0},
    {GgufType::kArray, "array", 0},     {GgufType::kUint64, "uint64", 8}, {GgufType::kInt64, "int64", 8},
    {GgufType::kFloat64, "float64", 8},
};

template <class T>
T value_at(std::string_view bytes, uint64_t index) {
  T value;  // little endian, not aligned
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

std::string shown_real(double number) {
  // JSON has no words for infinity and NaN.
  return std::isfinite(number) ? nlohmann::json(number).dump() : std::to_string(number);
}

// Nothing for a number beyond int64.
std::optional<int64_t> integer_of(GgufType type, std::string_view bytes, uint64_t index) {
  switch (type) {
    case GgufType::kUint8:
      return value_at<uint8_t>(bytes, index);
    case GgufType::kInt8:
      return value_at<int8_t>(bytes, index);
    case GgufType::kUint16:
      return value_at<uint16_t>(bytes, index);
    case GgufType::kInt16:
      return value_at<int16_t>(bytes, index);
    case GgufType::kUint32:
      return value_at<uint32_t>(bytes, index);
    case GgufType::kInt32:
      return value_at<int32_t>(bytes, index);
    case GgufType::kUint64: {
      const auto number = value_at<uint64_t>(bytes, index);
      if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
      return static_cast<int64_t>(number);
    }
    default:
      return value_at<int64_t>(bytes, index);
  }
}

}  // namespace

uint64_t gguf_type_bytes(GgufType type) {
  const auto* found = std::ranges::find(kTypes, type, &TypeInfo::type);
  return found == std::end(kTypes) ? 0 : found->bytes;
}

std::string gguf_type_name(GgufType type) {
  const auto* found = std::ranges::find(kTypes, type, &TypeInfo::type);
  return found == std::end(kTypes) ? "type " + std::to_string(static_cast<uint32_t>(type)) : found->name;
}

std::string shown_text(std::string_view text) {
  constexpr size_t kLongest = 80;
  const bool cut = text.size() > kLongest;
  using nlohmann::json;
  return json(std::string(text.substr(0, kLongest))).dump(-1, ' ', true, json::error_handler_t::replace) +
         (cut ? "..." : "");
}

std::string GgufField::where() const {
  return std::string(file_) + ": metadata key " + std::string(key_);
}

std::string GgufField::shown() const {
  if (value_.array) {
    return "an array of " + std::to_string(value_.count) + " values of type " + gguf_type_name(value_.type);
  }
  switch (value_.type) {
    case GgufType::kString:
      return shown_text(value_.bytes.substr(sizeof(uint64_t)));
    case GgufType::kBool:
      return value_at<uint8_t>(value_.bytes, 0) != 0 ? "true" : "false";
    case GgufType::kFloat32:
      return shown_real(value_at<float>(value_.bytes, 0));
    case GgufType::kFloat64:
      return shown_real(value_at<double>(value_.bytes, 0));
    case GgufType::kUint64:
      return std::to_string(value_at<uint64_t>(value_.bytes, 0));
    default:
      return std::to_string(*integer_of(value_.type, value_.bytes, 0));
  }
}

void GgufField::fail(const std::string& expectation) const {
  throw CorruptFile(where() + " is " + shown() + ", expected " + expectation);
}

bool GgufField::is_integer() const {
  switch (value_.type) {
    case GgufType::kFloat32:
    case GgufType::kFloat64:
    case GgufType::kBool:
    case GgufType::kString:
    case GgufType::kArray:
      return false;
    default:
      return true;
  }
}

std::string_view GgufField::text() const {
  if (value_.array || value_.type != GgufType::kString) fail("a string");
  const std::string_view text = value_.bytes.substr(sizeof(uint64_t));
  if (find_invalid_utf8(text)) fail("UTF-8");
  return text;
}

bool GgufField::boolean() const {
  if (value_.array || value_.type != GgufType::kBool) fail("a bool");
  return value_at<uint8_t>(value_.bytes, 0) != 0;
}

int64_t GgufField::integer_at(uint64_t index, int64_t min, int64_t max) const {
  const std::optional<int64_t> number = integer_of(value_.type, value_.bytes, index);
  if (number && *number >= min && *number <= max) return *number;
  const std::string range = "from " + std::to_string(min) + " to " + std::to_string(max);
  if (!value_.array) fail("an integer " + range);
  throw CorruptFile(where() + ": element " + std::to_string(index) + " is " +
                    (number ? std::to_string(*number) : "beyond int64") + ", expected an integer " + range);
}

int64_t GgufField::integer(int64_t min, int64_t max) const {
  if (value_.array || !is_integer()) {
    fail("an integer from " + std::to_string(min) + " to " + std::to_string(max));
  }
  return integer_at(0, min, max);
}

double GgufField::real(double min, double max) const {
  const bool single = value_.type == GgufType::kFloat32;
  const auto expectation = [&] {
    return "a float from " + nlohmann::json(min).dump() + " to " + nlohmann::json(max).dump();
  };
  if (value_.array || (!single && value_.type != GgufType::kFloat64)) fail(expectation());
  const double number = single ? double{value_at<float>(value_.bytes, 0)} : value_at<double>(value_.bytes, 0);
  if (!(number >= min && number <= max)) fail(expectation());
  return number;
}

uint64_t GgufField::elements() const {
  if (!value_.array) fail("an array");
  return value_.count;
}

std::vector<std::string_view> GgufField::texts() const {
  if (!value_.array || value_.type != GgufType::kString) fail("an array of strings");
  std::vector<std::string_view> texts;
  texts.reserve(value_.count);
  std::string_view rest = value_.bytes;
  for (uint64_t i = 0; i < value_.count; ++i) {
    const auto length = value_at<uint64_t>(rest, 0);
    const std::string_view text = rest.substr(sizeof(uint64_t), length);
    if (find_invalid_utf8(text)) {
      throw CorruptFile(where() + ": element " + std::to_string(i) + " is " + shown_text(text) +
                        ", expected UTF-8");
    }
    texts.push_back(text);
    rest.remove_prefix(sizeof(uint64_t) + length);
  }
  return texts;
}

std::vector<int64_t> GgufField::integers(int64_t min, int64_t max) const {
  if (!value_.array || !is_integer()) fail("an array of integers");
  std::vector<int64_t> numbers;
  numbers.reserve(value_.count);
  for (uint64_t i = 0; i < value_.count; ++i) numbers.push_back(integer_at(i, min, max));
  return numbers;
}

}  // namespace allot::model
