// Which fields of conditions a test has varied, so that a field that comes later is not left out of it.
#pragma once

#include <set>
#include <string>

#include "base/json.h"
#include "evaluation/conditions.h"

namespace allot::app {

// The fields of conditions that were seen, as JSON pointers, less those that once had another value than in
// the first conditions, or were not there.
class ConditionFields {
 public:
  explicit ConditionFields(const evaluation::Conditions& first)
      : first_(evaluation::full_json(first).flatten()) {
    see(first);
  }
  void see(const evaluation::Conditions& conditions) {
    const nlohmann::ordered_json flat = evaluation::full_json(conditions).flatten();
    for (const auto& [field, value] : flat.items()) {
      seen_.insert(field);
      if (!first_.contains(field) || first_.at(field) != value) varied_.insert(field);
    }
  }
  std::set<std::string> never_varied() const {
    std::set<std::string> fields;
    for (const std::string& field : seen_)
      if (!varied_.contains(field)) fields.insert(field);
    return fields;
  }
  // Those of the model itself, which one option names together.
  static std::set<std::string> of_model() {
    return {"/model/config_sha256",    "/model/head_dim",           "/model/id",
            "/model/layers",           "/model/num_kv_heads",       "/model/num_q_heads",
            "/model/tokenizer_sha256", "/model/weights_fingerprint"};
  }

 private:
  nlohmann::ordered_json first_;
  std::set<std::string> seen_, varied_;
};

}  // namespace allot::app
