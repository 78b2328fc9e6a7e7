// The attention method of a run's spec, as the wire carries it.
#pragma once

#include "kernels/method.h"
#include "wire/messages_fwd.h"

namespace allot::worker {

// Throws InvalidArgument naming every field that this build does not take, as for schedule.json
// (evaluation/method_json.h).
kernels::AttentionMethod attention_method(const wire::AttentionSpec& spec);
wire::AttentionSpec attention_spec(const kernels::AttentionMethod& method);

}  // namespace allot::worker
