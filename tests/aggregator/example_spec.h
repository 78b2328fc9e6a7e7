// A small run that every aggregator test starts from: 8 layers, N = 64, 10 learning episodes of 4 questions,
// then 6 held-out questions.
#pragma once

#include "aggregator/run_spec.h"
#include "wire/messages.pb.h"
#include "wire/spec.h"

namespace allot::aggregator {

inline wire::RunSpec example_spec() {
  wire::RunSpec spec;
  spec.set_schema_version(wire::kSpecVersion);
  spec.set_run_id("example");
  wire::ModelIdentity& model = *spec.mutable_model();
  model.set_id("tiny");
  model.set_config_sha256("c0");
  model.set_tokenizer_sha256("70");
  model.set_weights_fingerprint("3e");
  model.set_layers(8);
  wire::TaskSpec& task = *spec.mutable_task();
  task.set_name("gsm8k");
  task.mutable_train()->set_sha256("7a");
  task.mutable_train()->set_questions(50);
  task.mutable_heldout()->set_sha256("4e");
  task.mutable_heldout()->set_questions(20);
  task.set_heldout_questions(6);
  policy::PolicyConfig policy;
  policy.name = "pairs";
  policy.total = 64;
  policy.floor = 1;
  policy.parameters = {{"pairs_per_update", 2}};
  *spec.mutable_policy() = policy_spec(policy);
  spec.set_seed(7);
  spec.set_episodes(10);
  spec.set_questions_per_episode(4);
  spec.set_lease_ms(60'000);
  spec.set_max_attempts(3);
  return spec;
}

// The hello of a worker that has what the spec asks for.
inline wire::Hello example_hello(const wire::RunSpec& spec, const std::string& worker) {
  wire::Hello hello;
  hello.set_worker(worker);
  hello.set_build("test");
  hello.set_device("none");
  *hello.mutable_model() = spec.model();
  *hello.mutable_train() = spec.task().train();
  *hello.mutable_heldout() = spec.task().heldout();
  for (const wire::EvaluationTask& more : spec.evaluation().more()) *hello.add_more() = more.task().train();
  return hello;
}

// The same model and questions, evaluated on CPUs.
inline wire::RunSpec evaluation_spec() {
  wire::RunSpec spec = example_spec();
  spec.clear_policy();
  spec.clear_episodes();
  spec.mutable_task()->clear_heldout();
  spec.mutable_task()->clear_heldout_questions();
  spec.mutable_evaluation()->set_device("cpu");
  return spec;
}

}  // namespace allot::aggregator
