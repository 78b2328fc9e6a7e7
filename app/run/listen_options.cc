#include "app/run/listen_options.h"

#include "aggregator/rate_limiter.h"
#include "aggregator/service.h"
#include "app/cli/as_usage.h"
#include "base/error.h"
#include "wire/keys.h"

namespace allot::app {

void declare_listen_options(OptionSet* set, ListenOptions* options, const char* bind_help) {
  options->max_rate = aggregator::RateLimits{}.per_second;
  set->text("bind", &options->bind, "ENDPOINT", bind_help);
  set->path("key", &options->key,
            "secret key of this aggregator (allot keys new); workers and clients then need keys too");
  set->path("allow", &options->allow,
            "file of who may connect, lines KEY NAME [viewer|worker|operator]; read again when it changes");
  set->flag(
      "insecure", &options->insecure,
      "listen without keys on an address that other machines reach: everyone who reaches it may do anything");
  set->integer("max-connections", &options->max_connections, 1, 1'000'000, "N",
               "with keys: most connections at once; further ones are refused");
  set->real("max-rate", &options->max_rate, 1, 1e6, "N",
            "messages per second that one connection may send on average");
}

void listen(const ListenOptions& options, aggregator::ServiceOptions* service) {
  service->server.bind = options.bind;
  service->server.insecure = options.insecure;
  service->server.max_connections = options.max_connections;
  // A connection may send five seconds' worth at once: after an outage a worker may have many results.
  service->rate = {.per_second = options.max_rate, .burst = 5 * options.max_rate};
  if (options.key.empty() != options.allow.empty())
    throw UsageError(
        "--key and --allow belong together: the aggregator's key, and the list of who may connect");
  if (options.key.empty()) return;
  as_usage([&] {
    (void)wire::read_allow_list(options.allow);
    service->server.keys = {
        .own = wire::read_key_pair(options.key), .allow_list = options.allow, .own_file = options.key};
  });
}

}  // namespace allot::app
