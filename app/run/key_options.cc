#include "app/run/key_options.h"

#include "aggregator/run_directory.h"
#include "app/cli/as_usage.h"
#include "base/error.h"

namespace allot::app {

void declare_key_options(OptionSet& set, KeyOptions* options) {
  set.path("key", &options->key, "secret key to show to an aggregator that asks for one (allot keys new)");
  set.text(
      "server-key", &options->server_key, "KEY",
      "the aggregator's public key, or a file with it, or with two lines while it changes its key; default: the "
      "key in its run directory");
}

std::optional<wire::ClientKeys> load_keys(const KeyOptions& options, const std::filesystem::path& run) {
  if (options.key.empty()) {
    if (options.server_key.empty()) return std::nullopt;
    throw UsageError(
        "--server-key without --key: an aggregator with keys asks for yours too; allot keys new makes one");
  }
  std::string server_key = options.server_key;
  if (server_key.empty() && !run.empty()) server_key = aggregator::server_key_path(run).string();
  if (server_key.empty()) {
    throw UsageError(
        "--key without --server-key: give the aggregator's public key, which `allot keys public` prints");
  }
  return as_usage([&] {
    const std::vector<wire::PublicKey> servers = wire::read_server_keys(server_key);
    wire::ClientKeys keys{servers[0], wire::read_key_pair(options.key)};
    if (servers.size() > 1) keys.other_server = servers[1];
    return keys;
  });
}

}  // namespace allot::app
