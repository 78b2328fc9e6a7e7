// What the tests of documents that hold measurements share: a small model, and what a reader says of a
// document that was changed.
#pragma once

#include <functional>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "model/model_config.h"

namespace allot::evaluation {

inline model::ModelIdentity example_model() {
  return {.id = "tiny",
          .config_sha256 = std::string(64, 'a'),
          .tokenizer_sha256 = std::string(64, 'b'),
          .weights_fingerprint = std::string(64, 'c'),
          .layers = 2,
          .num_q_heads = 8,
          .num_kv_heads = 4,
          .head_dim = 32};
}

// The message with which `parse(text)` refuses `document` after `change`; "no error" where it takes it.
template <class Parse>
std::string error_of_changed(const std::string& document,
                             const std::function<void(nlohmann::ordered_json*)>& change, Parse parse) {
  auto json = nlohmann::ordered_json::parse(document);
  change(&json);
  try {
    (void)parse(json.dump());
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace allot::evaluation
