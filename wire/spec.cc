#include "wire/spec.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/sha256.h"
#include "wire/messages.pb.h"

namespace allot::wire {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Full names of optional fields whose absence says that they have this value, not that nobody knows it.
constexpr std::array kUsual = {
    std::pair(std::string_view("allot.wire.DatasetIdentity.question_field"), std::string_view("question")),
    std::pair(std::string_view("allot.wire.DatasetIdentity.answer_field"), std::string_view("answer")),
};

const std::string_view* usual_value(const FieldDescriptor& field) {
  const auto found = std::ranges::find(kUsual, field.full_name(), [](const auto& row) { return row.first; });
  return found == kUsual.end() ? nullptr : &found->second;
}

// Full names of the fields that may differ between two starts of one run.
constexpr std::array kForPeople = {
    std::string_view("allot.wire.RunSpec.run_id"),       std::string_view("allot.wire.RunSpec.model_path"),
    std::string_view("allot.wire.ModelIdentity.id"),     std::string_view("allot.wire.AdapterIdentity.id"),
    std::string_view("allot.wire.AdapterIdentity.path"), std::string_view("allot.wire.DatasetIdentity.path"),
};

// A singular field that is not a message, as JSON would print it.
std::string value_text(const Message& message, const FieldDescriptor& field) {
  const auto& reflection = *message.GetReflection();
  const std::string_view* usual = usual_value(field);
  if (usual != nullptr && !reflection.HasField(message, &field)) return fmt::format("'{}'", *usual);
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return std::to_string(reflection.GetInt32(message, &field));
    case FieldDescriptor::CPPTYPE_INT64:
      return std::to_string(reflection.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_UINT32:
      return std::to_string(reflection.GetUInt32(message, &field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return std::to_string(reflection.GetUInt64(message, &field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, &field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_STRING: {
      constexpr size_t kLongest = 200;  // a task file is a message of its own
      const std::string text = reflection.GetString(message, &field);
      if (text.size() <= kLongest) return fmt::format("'{}'", text);
      return fmt::format("{} bytes with the SHA-256 {}", text.size(), sha256_hex(text));
    }
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return fmt::format("{}", reflection.GetDouble(message, &field));
    default:
      throw InvalidArgument("field " + field.full_name() + " has a type that specs do not use");
  }
}

// The value of a parameter as text: from the map, else from the field in which the previous release kept it;
// empty when the spec has neither.
std::string parameter_text(const PolicySpec& policy, const std::string& name) {
  const auto found = policy.parameters().find(name);
  if (found != policy.parameters().end()) return fmt::format("{}", found->second);
  const FieldDescriptor* field = PolicySpec::descriptor()->FindFieldByName(name);
  return field != nullptr && field->options().deprecated() ? value_text(policy, *field) : "";
}

// Compares the parameters that either policy has by name. Where neither has any, their fields are compared
// like all others.
void compare_parameters(const PolicySpec& a, const PolicySpec& b, const std::string& prefix,
                        std::vector<std::string>* lines) {
  std::set<std::string> names;
  for (const PolicySpec* policy : {&a, &b}) {
    for (const auto& [name, value] : policy->parameters()) names.insert(name);
  }
  for (const std::string& name : names) {
    const std::string left = parameter_text(a, name), right = parameter_text(b, name);
    if (left != right) {
      lines->push_back(fmt::format("{}{}: {} != {}", prefix, name, left.empty() ? "none" : left,
                                   right.empty() ? "none" : right));
    }
  }
}

// Compares the parameters of estimators, which exist only by name and not as fields.
void compare_parameters(const AttentionSpec& a, const AttentionSpec& b, const std::string& prefix,
                        std::vector<std::string>* lines) {
  const auto text = [](const AttentionSpec& spec, const std::string& name) {
    const auto found = spec.parameters().find(name);
    return found == spec.parameters().end() ? std::string("none") : fmt::format("{}", found->second);
  };
  std::set<std::string> names;
  for (const AttentionSpec* spec : {&a, &b}) {
    for (const auto& [name, value] : spec->parameters()) names.insert(name);
  }
  for (const std::string& name : names) {
    const std::string left = text(a, name), right = text(b, name);
    if (left != right) lines->push_back(fmt::format("{}{}: {} != {}", prefix, name, left, right));
  }
}

// An adapter that only one identity has: the other has none, which is not one with empty fields.
bool compare_presence(const Message& a, const Message& b, const std::string& name,
                      std::vector<std::string>* lines) {
  const auto* left = dynamic_cast<const ModelIdentity*>(&a);
  const auto* right = dynamic_cast<const ModelIdentity*>(&b);
  if (left == nullptr || right == nullptr || left->has_adapter() == right->has_adapter()) return false;
  const auto text = [](const ModelIdentity& model) {
    return model.has_adapter() ? fmt::format("'{}' ({})", model.adapter().id(), model.adapter().fingerprint())
                               : std::string("none");
  };
  lines->push_back(fmt::format("{}: {} != {}", name, text(*left), text(*right)));
  return true;
}

void compare(const Message& a, const Message& b, const std::string& prefix, std::vector<std::string>* lines);

// Compares lists of messages, the only ones that specs have.
void compare_lists(const Message& a, const Message& b, const FieldDescriptor& field, const std::string& name,
                   std::vector<std::string>* lines) {
  const google::protobuf::Reflection& left = *a.GetReflection();
  const google::protobuf::Reflection& right = *b.GetReflection();
  if (const int size = left.FieldSize(a, &field), other = right.FieldSize(b, &field); size != other) {
    lines->push_back(fmt::format("{}: {} of them != {}", name, size, other));
    return;
  }
  for (int i = 0; i < left.FieldSize(a, &field); ++i)
    compare(left.GetRepeatedMessage(a, &field, i), right.GetRepeatedMessage(b, &field, i),
            fmt::format("{}[{}].", name, i), lines);
}

void compare(const Message& a, const Message& b, const std::string& prefix, std::vector<std::string>* lines) {
  const auto* left_policy = dynamic_cast<const PolicySpec*>(&a);
  const auto* right_policy = dynamic_cast<const PolicySpec*>(&b);
  const bool by_name =
      left_policy != nullptr && left_policy->parameters_size() + right_policy->parameters_size() > 0;
  const auto& descriptor = *a.GetDescriptor();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    if (std::ranges::find(kForPeople, field.full_name()) != kForPeople.end()) continue;
    if (field.is_map()) {
      if (by_name) compare_parameters(*left_policy, *right_policy, prefix, lines);
      if (const auto* attention = dynamic_cast<const AttentionSpec*>(&a))
        compare_parameters(*attention, dynamic_cast<const AttentionSpec&>(b), prefix, lines);
      continue;
    }
    // A field of another learner, or of a parameter that is compared by name.
    if (by_name && field.options().deprecated()) continue;
    // A stored spec from before this field had been thought of: its run goes on as it began.
    const bool optional = field.has_presence() && field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE;
    if (optional && usual_value(field) == nullptr && !a.GetReflection()->HasField(a, &field)) continue;
    const std::string name = prefix + field.name();
    if (field.is_repeated()) {
      compare_lists(a, b, field, name, lines);
      continue;
    }
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (compare_presence(a, b, name, lines)) continue;
      compare(a.GetReflection()->GetMessage(a, &field), b.GetReflection()->GetMessage(b, &field), name + ".",
              lines);
      continue;
    }
    const std::string left = value_text(a, field), right = value_text(b, field);
    if (left != right) lines->push_back(fmt::format("{}: {} != {}", name, left, right));
  }
}

template <class T>
std::vector<std::string> compared(const T& a, const T& b) {
  std::vector<std::string> lines;
  compare(a, b, "", &lines);
  return lines;
}

}  // namespace

void check_version(const RunSpec& spec) {
  if (spec.schema_version() <= kSpecVersion) return;
  throw Mismatch(fmt::format(
      "the spec of run '{}' is of schema version {}, this release reads versions up to {}; use the release of "
      "its aggregator",
      spec.run_id(), spec.schema_version(), kSpecVersion));
}

std::string to_json(const RunSpec& spec) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(spec, &json, options);
  if (!status.ok()) throw InvalidArgument("the run's spec cannot be written as JSON: " + status.ToString());
  return json;
}

RunSpec spec_from_json(std::string_view json, std::string_view where) {
  RunSpec spec;
  const auto status = google::protobuf::util::JsonStringToMessage({json.data(), json.size()}, &spec);
  if (!status.ok()) {
    std::string reason = status.ToString();
    std::ranges::replace(reason, '\n', ' ');
    throw CorruptFile(std::string(where) + " is not a run's spec: " + reason);
  }
  return spec;
}

RunSpec read_spec(const std::filesystem::path& file) {
  return spec_from_json(read_file(file), file.string());
}

std::vector<std::string> differences(const RunSpec& a, const RunSpec& b) {
  return compared(a, b);
}
std::vector<std::string> differences(const ModelIdentity& a, const ModelIdentity& b) {
  return compared(a, b);
}
std::vector<std::string> differences(const DatasetIdentity& a, const DatasetIdentity& b) {
  return compared(a, b);
}

}  // namespace allot::wire
