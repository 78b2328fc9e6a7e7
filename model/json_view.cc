#include "model/json_view.h"

#include <cmath>
#include <utility>

#include "base/file.h"
#include "model/hub_cache.h"
#include "model/utf8.h"

namespace allot::model {

using nlohmann::json;

namespace {

std::string content_of(const std::filesystem::path& path) {
  try {
    return read_file(path);
  } catch (const NotFound& error) {
    std::string message = error.what();
    message += download_hint(path.parent_path());
    throw NotFound(message);
  }
}

}  // namespace

json parse_json_file(const std::filesystem::path& path) {
  const std::string content = content_of(path);
  try {
    return json::parse(content);
  } catch (const json::parse_error& error) {
    throw CorruptFile(path.string() + " is not JSON: parsing stops at byte " + std::to_string(error.byte) +
                      " of " + std::to_string(content.size()) + "; download or write the file again");
  } catch (const json::out_of_range&) {
    throw CorruptFile(path.string() +
                      " holds a number beyond the range of a 64-bit float; download or write the file again");
  }
}

JsonView::JsonView(const json& value, std::string file, std::string field)
    : value_(&value), file_(std::move(file)), field_(std::move(field)) {}

JsonView JsonView::at(const std::string& name) const {
  if (auto member = find(name)) return *std::move(member);
  throw CorruptFile(file_ + ": field " + (field_.empty() ? name : field_ + "." + name) +
                    " is missing, which this kind of file must have");
}

std::optional<JsonView> JsonView::find(const std::string& name) const {
  if (!value_->is_object()) fail("an object");
  const auto member = value_->find(name);
  if (member == value_->end() || member->is_null()) return std::nullopt;
  return JsonView(*member, file_, field_.empty() ? name : field_ + "." + name);
}

std::vector<JsonView> JsonView::elements() const {
  if (!value_->is_array()) fail("a list");
  std::vector<JsonView> result;
  result.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i) {
    result.emplace_back((*value_)[i], file_, field_ + "[" + std::to_string(i) + "]");
  }
  return result;
}

const std::string& JsonView::text() const {
  if (!value_->is_string()) fail("a string");
  return value_->get_ref<const std::string&>();
}

const std::string& JsonView::character() const {
  const std::string& value = text();
  if (!is_one_character(value)) fail("one character");
  return value;
}

bool JsonView::boolean() const {
  if (!value_->is_boolean()) fail("true or false");
  return value_->get<bool>();
}

int64_t JsonView::integer(int64_t min, int64_t max) const {
  const auto expectation = [&] {
    return "an integer from " + std::to_string(min) + " to " + std::to_string(max);
  };
  if (!value_->is_number_integer()) fail(expectation());
  // An unsigned value beyond int64 would wrap to a negative one.
  if (value_->is_number_unsigned() && value_->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    fail(expectation());
  }
  const auto number = value_->get<int64_t>();
  if (number < min || number > max) fail(expectation());
  return number;
}

double JsonView::real(double min, double max) const {
  const auto expectation = [&] { return "a number from " + json(min).dump() + " to " + json(max).dump(); };
  if (!value_->is_number()) fail(expectation());
  const auto number = value_->get<double>();
  if (!(number >= min && number <= max)) fail(expectation());
  return number;
}

std::string JsonView::text_or(const std::string& name, std::string fallback) const {
  const auto member = find(name);
  return member ? member->text() : std::move(fallback);
}

bool JsonView::boolean_or(const std::string& name, bool fallback) const {
  const auto member = find(name);
  return member ? member->boolean() : fallback;
}

int64_t JsonView::integer_or(const std::string& name, int64_t min, int64_t max, int64_t fallback) const {
  const auto member = find(name);
  return member ? member->integer(min, max) : fallback;
}

double JsonView::real_or(const std::string& name, double min, double max, double fallback) const {
  const auto member = find(name);
  return member ? member->real(min, max) : fallback;
}

std::string JsonView::where() const {
  return field_.empty() ? file_ : file_ + ": field " + field_;
}

std::string JsonView::shown() const {
  constexpr size_t kLongest = 80;
  std::string text = value_->dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

void JsonView::fail(const std::string& expectation) const {
  throw CorruptFile(where() + " is " + shown() + ", expected " + expectation);
}

}  // namespace allot::model
