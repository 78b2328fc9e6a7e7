#include "worker/spec_method.h"

#include <google/protobuf/util/json_util.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "evaluation/json_fields.h"
#include "evaluation/method_json.h"
#include "wire/messages.pb.h"

// The message's fields have the names and meanings of the method's JSON form, so one file alone goes through
// them, evaluation/method_json.cc.

namespace allot::worker {
namespace {

namespace protobuf = google::protobuf::util;

void check(const protobuf::Status& status, const std::string& text) {
  if (!status.ok())
    throw InvalidArgument("attention: " + text + " is no attention method: " + status.ToString());
}

}  // namespace

kernels::AttentionMethod attention_method(const wire::AttentionSpec& spec) {
  protobuf::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  check(protobuf::MessageToJsonString(spec, &text, options), "the message");
  auto json = nlohmann::ordered_json::parse(text);
  // What the JSON form leaves out.
  if (spec.unit().empty()) json.erase("unit");
  if (spec.parameters().empty()) json.erase("parameters");
  std::vector<std::string> faults;
  const kernels::AttentionMethod method = evaluation::read_method({json, "attention", &faults});
  if (!faults.empty()) throw InvalidArgument(fmt::format("the run's spec: {}", fmt::join(faults, "; ")));
  return method;
}

wire::AttentionSpec attention_spec(const kernels::AttentionMethod& method) {
  wire::AttentionSpec spec;
  const std::string text = evaluation::method_json(method).dump();
  check(protobuf::JsonStringToMessage(text, &spec), text);
  return spec;
}

}  // namespace allot::worker
