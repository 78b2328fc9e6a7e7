// What an aggregator answers over HTTP: / (the live page), /api/run, /metrics, /healthz and /readyz; or, at
// an address for machines alone, the last three. docs/monitoring.md describes each.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "aggregator/http_server.h"
#include "aggregator/live_state.h"
#include "base/clock.h"

namespace allot::app {

// Most workers that /api/run lists.
inline constexpr size_t kMostWorkersListed = 200;
// When the service loop has been silent this long, it is not alive. A commit to a slow disk may block
// it for seconds.
inline constexpr Duration kSilenceOfDeath{60'000};

// `live` is only read; the disk is examined when /metrics is requested.
aggregator::HttpServer::Handlers live_handlers(const std::shared_ptr<const aggregator::LiveState>& live,
                                               const std::filesystem::path& run_directory);
// Of these, what machines ask for: /metrics, /healthz and /readyz.
aggregator::HttpServer::Handlers metrics_handlers(const std::shared_ptr<const aggregator::LiveState>& live,
                                                  const std::filesystem::path& run_directory);

// The live page with `nonce` on its style and its script.
std::string live_page(const std::string& nonce);

// The same page as one file that shows `snapshot` and asks no server.
std::string saved_page(const aggregator::Snapshot& snapshot);

}  // namespace allot::app
