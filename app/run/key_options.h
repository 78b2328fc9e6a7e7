// The options with which a worker or client identifies itself: --key and --server-key.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "app/cli/options.h"
#include "wire/keys.h"

namespace allot::app {

struct KeyOptions {
  std::filesystem::path key;  // file of this side's secret key
  std::string server_key;     // the aggregator's public key, or a file that holds it, or two
};

void declare_key_options(OptionSet& set, KeyOptions* options);

// Returns nothing when no key is given; then the aggregator must not ask for one. `run` is the
// run directory, empty when the aggregator was named by its address; its file server-key is used
// when --server-key is not given. Throws UsageError when one of the two keys is missing, and what
// read_key_pair() and read_server_keys() throw.
std::optional<wire::ClientKeys> load_keys(const KeyOptions& options, const std::filesystem::path& run);

}  // namespace allot::app
