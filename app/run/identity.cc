#include "app/run/identity.h"
#include "wire/messages.pb.h"

namespace allot::app {

wire::ModelIdentity to_wire(const model::ModelIdentity& identity) {
  wire::ModelIdentity message;
  message.set_id(identity.id);
  message.set_config_sha256(identity.config_sha256);
  message.set_tokenizer_sha256(identity.tokenizer_sha256);
  message.set_weights_fingerprint(identity.weights_fingerprint);
  message.set_layers(identity.layers);
  message.set_num_q_heads(identity.num_q_heads);
  message.set_num_kv_heads(identity.num_kv_heads);
  message.set_head_dim(identity.head_dim);
  if (identity.adapter) {
    message.mutable_adapter()->set_id(identity.adapter->id);
    message.mutable_adapter()->set_fingerprint(identity.adapter->fingerprint);
  }
  return message;
}

wire::DatasetIdentity to_wire(const evaluation::Dataset& dataset) {
  wire::DatasetIdentity message;
  message.set_path(absolute_path(dataset.path).string());
  message.set_sha256(dataset.sha256);
  message.set_questions(static_cast<uint32_t>(dataset.questions.size()));
  const evaluation::FieldNames usual;
  if (dataset.fields.question != usual.question) message.set_question_field(dataset.fields.question);
  if (dataset.fields.answer != usual.answer) message.set_answer_field(dataset.fields.answer);
  return message;
}

std::filesystem::path absolute_path(const std::filesystem::path& path) {
  return std::filesystem::absolute(path).lexically_normal();
}

}  // namespace allot::app
