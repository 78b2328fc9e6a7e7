#include "worker/spec_conditions.h"

#include <optional>
#include <utility>

#include "wire/messages.pb.h"
#include "worker/spec_method.h"

namespace allot::worker {

model::ModelIdentity model_identity(const wire::ModelIdentity& identity) {
  std::optional<model::AdapterIdentity> adapter;
  if (identity.has_adapter()) {
    adapter = {.id = identity.adapter().id(), .fingerprint = identity.adapter().fingerprint()};
  }
  return {.id = identity.id(),
          .config_sha256 = identity.config_sha256(),
          .tokenizer_sha256 = identity.tokenizer_sha256(),
          .weights_fingerprint = identity.weights_fingerprint(),
          .layers = identity.layers(),
          .num_q_heads = identity.num_q_heads(),
          .num_kv_heads = identity.num_kv_heads(),
          .head_dim = identity.head_dim(),
          .adapter = std::move(adapter)};
}

evaluation::FieldNames field_names(const wire::DatasetIdentity& data) {
  evaluation::FieldNames names;
  if (data.has_question_field()) names.question = data.question_field();
  if (data.has_answer_field()) names.answer = data.answer_field();
  return names;
}

evaluation::Dataset load(const evaluation::Task& task, const wire::DatasetIdentity& data) {
  return task.load(data.path(), field_names(data));
}

evaluation::TaskSource task_source(const wire::TaskSpec& task) {
  return {.name = task.name(), .prompt_style = task.prompt_style(), .definition = task.definition()};
}

model::WeightStorage weight_storage(const wire::GenerationSpec& generation) {
  return generation.weights().empty() ? model::WeightStorage::kDtype
                                      : model::parse_weight_storage(generation.weights());
}

kernels::KeyFormat key_format(const wire::GenerationSpec& generation) {
  return generation.keys().empty() ? kernels::KeyFormat::kSixteenBits
                                   : kernels::parse_key_format(generation.keys());
}

evaluation::Conditions conditions_of(const wire::RunSpec& spec) {
  const wire::TaskSpec& task = spec.task();
  const wire::GenerationSpec& generation = spec.generation();
  evaluation::Conditions conditions;
  conditions.model = model_identity(spec.model());
  const auto made = evaluation::make_task(task_source(task));
  conditions.task = evaluation::identity_of(*made, task.prompt_style());
  // That of the run, also where this build has another version of a task of allot.
  conditions.task.version = task.version();
  conditions.learned_on = {.sha256 = task.train().sha256(),
                           .questions = task.train().questions(),
                           .fields = field_names(task.train())};
  if (task.heldout_questions() > 0) {
    conditions.measured_on = {.sha256 = task.heldout().sha256(),
                              .questions = task.heldout_questions(),
                              .fields = field_names(task.heldout())};
  }
  conditions.attention = attention_method(spec.attention());
  conditions.generation = {.dtype = kernels::parse_dtype(generation.dtype()),
                           .weights = weight_storage(generation),
                           .keys = key_format(generation),
                           .temperature = generation.temperature(),
                           .top_p = generation.top_p(),
                           .repetition_penalty = generation.repetition_penalty(),
                           .max_new_tokens = generation.max_new_tokens(),
                           // Not in the spec: the task and its version decide it.
                           .stop = made->generation_defaults().stop};
  conditions.seed = spec.seed();
  return conditions;
}

}  // namespace allot::worker
