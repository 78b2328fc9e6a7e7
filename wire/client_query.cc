#include "wire/client_query.h"

#include <algorithm>

#include "base/error.h"
#include "wire/codec.h"
#include "wire/endpoint.h"

namespace allot::wire {
namespace {

// How often to check whether the handshake has failed.
constexpr Duration kLook{100};

}  // namespace

Envelope ask_aggregator(const std::string& endpoint, const std::optional<ClientKeys>& keys, Envelope question,
                        Envelope::BodyCase expected, Duration timeout) {
  Client client(endpoint, keys);
  question.set_number(1);
  client.send(encode(question));

  const auto start = std::chrono::steady_clock::now();
  const auto left = [&] {
    return timeout - std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now() - start);
  };
  while (left() > Duration::zero()) {
    const auto frame = client.receive(std::min(left(), kLook));
    if (!frame) {
      const auto failure = client.handshake_failure();
      if (!failure) continue;
      if (client.lacks_key() && keys && keys->other_server) {
        const ClientKeys other{*keys->other_server, keys->own};
        return ask_aggregator(endpoint, other, std::move(question), expected, left());
      }
      if (client.lacks_key()) throw HandshakeRefused(endpoint + ": " + *failure);
      throw NetworkError(endpoint + ": " + *failure);
    }
    const auto decoded = decode(*frame);
    if (const auto* failure = std::get_if<DecodeFailure>(&decoded)) {
      throw NetworkError("the answer of " + endpoint + " cannot be read: " + failure->message);
    }
    const Envelope& answer = std::get<Envelope>(decoded);
    if (answer.has_refused())
      throw NetworkError(endpoint + " refused to answer: " + answer.refused().message());
    if (answer.has_wait()) {
      throw NetworkError(endpoint + " has more questions than it answers; try again in " +
                         std::to_string(answer.wait().retry_after_ms()) + " ms");
    }
    if (answer.body_case() == expected) return answer;
  }
  throw NoAnswer(
      "no answer from " + endpoint + " within " + std::to_string(timeout.count()) +
      " ms; check that an aggregator runs there (a run directory's file 'endpoint' names its address)");
}

}  // namespace allot::wire
