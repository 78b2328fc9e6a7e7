#include "wire/control_query.h"

#include "wire/client_query.h"

namespace allot::wire {

ControlReply send_control(const std::string& endpoint, const Control& control, Duration timeout) {
  Envelope question;
  question.set_sender("control");
  *question.mutable_control() = control;
  return ask_aggregator(endpoint, std::move(question), Envelope::kControlReply, timeout).control_reply();
}

}  // namespace allot::wire
