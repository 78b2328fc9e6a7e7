#include "wire/status_query.h"

#include <algorithm>

#include "base/error.h"
#include "wire/codec.h"
#include "wire/endpoint.h"

namespace allot::wire {
namespace {

// A handshake that failed is noticed so soon.
constexpr Duration kLook{100};

}  // namespace

Status query_status(const std::string& endpoint, Duration timeout, const std::optional<ClientKeys>& keys) {
  Client client(endpoint, keys);
  Envelope question;
  question.set_number(1);
  question.set_sender("status");
  question.mutable_status_request();
  client.send(encode(question));

  const auto start = std::chrono::steady_clock::now();
  const auto left = [&] {
    return timeout - std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now() - start);
  };
  while (left() > Duration::zero()) {
    const auto frame = client.receive(std::min(left(), kLook));
    if (!frame) {
      if (const auto failure = client.handshake_failure()) throw NetworkError(endpoint + ": " + *failure);
      continue;
    }
    const auto decoded = decode(*frame);
    if (const auto* failure = std::get_if<DecodeFailure>(&decoded)) {
      throw NetworkError("the answer of " + endpoint + " cannot be read: " + failure->message);
    }
    const Envelope& answer = std::get<Envelope>(decoded);
    if (answer.has_refused())
      throw NetworkError(endpoint + " refused to answer: " + answer.refused().message());
    if (answer.has_status()) return answer.status();
  }
  throw NetworkError(
      "no answer from " + endpoint + " within " + std::to_string(timeout.count()) +
      " ms; check that an aggregator runs there (a run directory's file 'endpoint' names its address)");
}

}  // namespace allot::wire
