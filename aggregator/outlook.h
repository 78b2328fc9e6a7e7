// What a learner expects of its schedule (policy::Outlook) among the numbers with which it describes itself,
// so that the history has it of every version.
#pragma once

#include <optional>
#include <string_view>

#include "policy/policy.h"

namespace allot::aggregator {

// The learner's description of itself, and after it, where it has an outlook, the scalars outlook_gain,
// outlook_low, outlook_high (over the even schedule) and outlook_left (to gain).
policy::Description describe_with_outlook(const policy::Policy& policy);

// The outlook in such a description; nothing where it has none.
std::optional<policy::Outlook> outlook_of(const policy::Description& described);

// Whether the scalar of that name is a part of the outlook, not the learner's own.
bool is_of_outlook(std::string_view scalar);

}  // namespace allot::aggregator
