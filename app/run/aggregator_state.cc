#include "app/run/aggregator_state.h"

#include "aggregator/run_directory.h"
#include "app/run/run_directory.h"
#include "base/error.h"
#include "wire/client_query.h"
#include "wire/messages.pb.h"
#include "wire/status_query.h"

namespace allot::app {

std::string_view name(AggregatorState state) {
  switch (state) {
    case AggregatorState::kAnswers:
      return "answers";
    case AggregatorState::kSilent:
      return "silent";
    case AggregatorState::kNeedsKey:
      return "needs key";
    case AggregatorState::kNone:
      break;
  }
  return "none";
}

AskedAggregator ask_aggregator_of(const std::filesystem::path& run, const KeyOptions& keys, Duration timeout,
                                  wire::Status* status) {
  constexpr const char* kNone = "no aggregator serves this run";
  const auto endpoint = read_endpoint(run);
  AskedAggregator asked{.state = AggregatorState::kSilent,
                        .why =
                            "an aggregator runs and does not answer yet: it holds the run directory and "
                            "has not announced its address; it reads the history"};
  if (endpoint && keys.key.empty() && std::filesystem::exists(aggregator::server_key_path(run))) {
    asked = {.state = AggregatorState::kNeedsKey,
             .why = "an aggregator runs at " + *endpoint +
                    " and needs a key: give one that its allow-list has with --key"};
  } else if (endpoint) {
    const auto shown = load_keys(keys, run);
    try {
      *status = wire::query_status(*endpoint, timeout, shown);
      return {.state = AggregatorState::kAnswers};
    } catch (const wire::HandshakeRefused& refused) {
      asked = {.state = AggregatorState::kNeedsKey,
               .why = std::string("an aggregator runs and needs a key: ") + refused.what()};
    } catch (const wire::NoAnswer&) {
      asked.why = "an aggregator runs at " + *endpoint + " and does not answer within " +
                  std::to_string(timeout.count()) + " ms: it is stopped, or it hangs";
    } catch (const NetworkError& silence) {
      asked.why = std::string("an aggregator runs and does not answer: ") + silence.what();
    }
  }
  // Where the lock cannot be looked at, the address that it announced is the only sign of it.
  if (!aggregator::is_locked(run).value_or(endpoint.has_value()))
    return {.state = AggregatorState::kNone, .why = kNone};
  return asked;
}

}  // namespace allot::app
