// The conditions of a run, from its spec.
#pragma once

#include "evaluation/conditions.h"
#include "evaluation/task.h"
#include "wire/messages_fwd.h"

namespace allot::worker {

// A run measures on its held-out questions; without verification it measures on none. Throws InvalidArgument
// for a name in the spec that this build does not know.
evaluation::Conditions conditions_of(const wire::RunSpec& spec);

// How the weights of products are kept. Throws InvalidArgument for a name that this build does not know.
model::WeightStorage weight_storage(const wire::GenerationSpec& generation);

// Format of the keys of the KV cache. Throws InvalidArgument for a name that this build does not know.
kernels::KeyFormat key_format(const wire::GenerationSpec& generation);

// What the run's task is made of.
evaluation::TaskSource task_source(const wire::TaskSpec& task);

// By which names the data are to be read; the usual ones where the identity has none.
evaluation::FieldNames field_names(const wire::DatasetIdentity& data);

// The data at their path. Throws what Task::load throws.
evaluation::Dataset load(const evaluation::Task& task, const wire::DatasetIdentity& data);

model::ModelIdentity model_identity(const wire::ModelIdentity& identity);

}  // namespace allot::worker
