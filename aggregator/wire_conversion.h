// The aggregator's own types as messages.
#pragma once

#include <cstdint>
#include <string>

#include "aggregator/lease_table.h"
#include "aggregator/plan.h"
#include "aggregator/records.h"
#include "wire/messages_fwd.h"

namespace allot::aggregator {

wire::Ack_Verdict to_wire(AckVerdict verdict);
wire::ControlEvent to_wire(const RunControlled& controlled);
// The word for it on the command line and in the history, "max-attempts".
std::string action_word(wire::Control_Action action);
wire::GivenUp to_wire(const EpisodeGivenUp& given_up);
// `wanted` is the number of questions of the verification.
wire::Score to_wire(const VerifiedSchedule& schedule, int64_t wanted);

}  // namespace allot::aggregator
