// The attention method of a run's spec, as the wire carries it.
#pragma once

#include "kernels/method.h"
#include "wire/messages_fwd.h"

namespace allot::worker {

// Throws InvalidArgument for a name that this build does not know, also for that of a parameter.
kernels::AttentionMethod attention_method(const wire::AttentionSpec& spec);
wire::AttentionSpec attention_spec(const kernels::AttentionMethod& method);

}  // namespace allot::worker
