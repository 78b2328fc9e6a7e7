// The one JSON form of an attention method, which schedule.json and all other files and outputs embed;
// docs/schedule-format.md ("attention") lists its fields.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "evaluation/json_fields.h"
#include "kernels/method.h"

namespace allot::evaluation {

nlohmann::ordered_json method_json(const kernels::AttentionMethod& method);

// The inverse. Faults are noted in `fields`; the method is of no use when there are any.
kernels::AttentionMethod read_method(JsonFields&& fields);

}  // namespace allot::evaluation
