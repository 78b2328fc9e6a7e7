// RunSpec as spec.json (protobuf's JSON mapping, field names as in messages.proto, every field printed) and
// the comparison of two specs.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "wire/messages_fwd.h"

namespace allot::wire {

// RunSpec.schema_version of this release. Another one is not misread for want of a field: it means that a
// spec has to be read in another way.
inline constexpr int32_t kSpecVersion = 1;

// Throws Mismatch when a newer release made the spec in a form that this one cannot read.
void check_version(const RunSpec& spec);

// Text of a spec.json: every field, one a line, newline at the end.
[[nodiscard]] std::string to_json(const RunSpec& spec);
// `where` names the text in errors. Throws CorruptFile when it is not the JSON of a RunSpec; unknown fields
// are errors too.
[[nodiscard]] RunSpec spec_from_json(std::string_view json, std::string_view where);
// Throws NotFound, or as spec_from_json.
[[nodiscard]] RunSpec read_spec(const std::filesystem::path& file);

// One "field: a != b" per field that differs, in the order of messages.proto; empty when the specs are the
// same run. Fields that only say where something lies or name it for people may differ: run_id, model_path,
// model.id, model.adapter.id and the paths of adapter and datasets (fingerprints identify them). Optional
// fields that `a`, the spec of a run that has begun, does not have may differ too: a release without them
// wrote it. The fields of a dataset's rows are no such fields: one that is absent is the usual one.
[[nodiscard]] std::vector<std::string> differences(const RunSpec& a, const RunSpec& b);
// The same for two identities: compares every field except those that only name it for people.
[[nodiscard]] std::vector<std::string> differences(const ModelIdentity& a, const ModelIdentity& b);
[[nodiscard]] std::vector<std::string> differences(const DatasetIdentity& a, const DatasetIdentity& b);

}  // namespace allot::wire
