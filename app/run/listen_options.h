// The options of a command that serves leases to workers: where it listens, and who may connect.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "app/cli/options.h"

namespace allot::aggregator {
struct ServiceOptions;
}

namespace allot::app {

struct ListenOptions {
  std::string bind = {};           // "tcp://ADDRESS:PORT"
  std::filesystem::path key = {};  // file of this side's secret key; empty: peers need no keys
  std::filesystem::path allow = {};
  bool insecure = false;
  int32_t max_connections = 20'000;
  double max_rate = 0;  // messages per second of one connection; 0 until declared
};

// `bind_help` says what --bind does in this command.
void declare_listen_options(OptionSet* set, ListenOptions* options, const char* bind_help);

// Reads keys and allow-list and sets what `service` needs of them. Throws UsageError for one of --key and
// --allow without the other, and for files that are not what they should be.
void listen(const ListenOptions& options, aggregator::ServiceOptions* service);

}  // namespace allot::app
