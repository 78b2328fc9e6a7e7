// A network of hosts on one machine: each host is a network namespace with one address and a cable to a
// router in this process, which hands packets on late, out of order, twice or not at all. Done with TUN
// devices, which containers and small kernels have more often than the queueing discipline netem. Needs the
// right to make namespaces.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace allot::chaos {

// What happens to packets on one host's cable, in both directions.
struct Cable {
  Duration delay{0};
  Duration jitter{0};    // 0 to this much more, drawn for each packet: later ones overtake earlier ones
  double loss = 0;       // chance
  double duplicate = 0;  // chance
  bool cut = false;      // nothing passes
};

struct PacketCounts {
  int64_t delivered = 0;
  int64_t lost = 0;
  int64_t cut = 0;
  int64_t duplicated = 0;
  int64_t overtaken = 0;  // delivered after a packet of the same two hosts that was sent later
};

class Network {
 public:
  // Why hosts cannot be made here, with the system's reason; nothing where they can.
  static std::optional<std::string> obstacle();

  // Hosts 0, 1, …, `hosts` - 1 with sound cables. Throws std::runtime_error where obstacle() has a reason.
  Network(int hosts, uint64_t seed);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  int hosts() const { return static_cast<int>(hosts_.size()); }
  static std::string address(int host);
  // Runs `work` as a program on that host would be; processes and sockets that it makes stay there. Rethrows
  // what it throws.
  void run_on(int host, const std::function<void()>& work);

  // From the next packet on.
  void set_cable(int host, const Cable& cable);
  PacketCounts counts() const;

 private:
  struct Host {
    int name_space = -1;
    int tunnel = -1;
  };
  struct Packet {
    int from;
    int to;
    int64_t sent;  // its number among those of these two hosts
    std::string bytes;
  };
  using Instant = std::chrono::steady_clock::time_point;

  static Host make_host(int number);
  void route();
  void take(int from, std::string bytes, Instant now);
  void deliver_due(Instant now);
  int until_next(Instant now) const;  // milliseconds, for poll()

  std::vector<Host> hosts_;
  mutable std::mutex mutex_;  // guards what follows
  std::vector<Cable> cables_;
  PacketCounts counts_;
  // The router's own.
  std::mt19937_64 random_;
  std::multimap<Instant, Packet> under_way_;
  std::map<std::pair<int, int>, int64_t> last_sent_;
  std::map<std::pair<int, int>, int64_t> last_delivered_;
  int wake_ = -1;
  std::atomic<bool> stop_{false};
  std::thread router_;
};

}  // namespace allot::chaos
