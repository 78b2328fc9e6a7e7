#include "wire/status_query.h"

#include "wire/client_query.h"

namespace allot::wire {

Status query_status(const std::string& endpoint, Duration timeout) {
  Envelope question;
  question.set_sender("status");
  question.mutable_status_request();
  return ask_aggregator(endpoint, std::move(question), Envelope::kStatus, timeout).status();
}

}  // namespace allot::wire
