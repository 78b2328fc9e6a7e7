// What strangers and the holder of a viewer's key can do to an aggregator, for `allot bench aggregator
// --hostile`: HTTP requests that never end and messages that nobody can read, while the liveness probe is
// timed.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "wire/keys.h"

namespace allot::bench {

struct HostileFigures {
  int64_t slow_connections = 0;  // made; one that is ended is made again
  int64_t unreadable = 0;        // messages sent
  std::vector<double> probe_ms;  // of /healthz, ten times a second; one without an answer counts 5,000
};

class Hostile {
 public:
  // Begins at once, on threads of its own: `slow` connections to the page at `http`
  // ("http://127.0.0.1:PORT/"), each of which sends a byte of a header a second; `flooding` connections to
  // `endpoint` by the key of a viewer, over each of which 1,000 unreadable messages a second are sent,
  // answered or not.
  Hostile(const std::string& http, const std::string& endpoint, const wire::ClientKeys& viewer, int slow,
          int flooding);
  ~Hostile();
  Hostile(const Hostile&) = delete;
  Hostile& operator=(const Hostile&) = delete;

  // Ends it. Throws NetworkError where the flood ended by itself.
  HostileFigures stop();

 private:
  void drip(uint16_t port, int connections);
  void flood(const std::string& endpoint, const wire::ClientKeys& keys, int connections);
  void probe(uint16_t port);

  std::atomic<bool> stop_{false};
  HostileFigures figures_;
  std::string flood_ended_;  // why
  std::vector<std::jthread> threads_;
};

}  // namespace allot::bench
