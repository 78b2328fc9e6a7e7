// The one JSON form of an attention method, which schedule.json and all other files and outputs embed;
// docs/schedule-format.md ("attention") lists its fields.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "evaluation/json_fields.h"
#include "kernels/method.h"

namespace allot::evaluation {

nlohmann::ordered_json method_json(const kernels::AttentionMethod& method);

// The inverse. Faults are noted in `fields`; when there are any the method must not be used.
kernels::AttentionMethod read_method(JsonFields&& fields);

}  // namespace allot::evaluation
