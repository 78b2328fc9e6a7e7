#include "bench/aggregator/hostile.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "bench/aggregator/crowd.h"

namespace allot::bench {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// A thousand messages a second over each flooding connection.
constexpr int kFloodAtOnce = 5;
constexpr auto kFloodEvery = 5ms;
constexpr auto kProbePatience = 5s;

uint16_t port_of(const std::string& http) {
  const size_t colon = http.rfind(':');
  uint16_t port = 0;
  if (colon != std::string::npos) std::from_chars(http.data() + colon + 1, http.data() + http.size(), port);
  if (port == 0) throw InvalidArgument("'" + http + "' is not http://127.0.0.1:PORT/");
  return port;
}

sockaddr_in loopback(uint32_t last_bytes, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl((127U << 24) + last_bytes);
  return address;
}

// A connection from 127.`from`; -1 when there is none.
int connect_from(uint32_t from, uint16_t port) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return -1;
  const sockaddr_in source = loopback(from, 0);
  const sockaddr_in target = loopback(1, port);
  if (::bind(descriptor, reinterpret_cast<const sockaddr*>(&source), sizeof source) == 0 &&
      ::connect(descriptor, reinterpret_cast<const sockaddr*>(&target), sizeof target) == 0)
    return descriptor;
  ::close(descriptor);
  return -1;
}

bool send_all(int descriptor, std::string_view text) {
  return ::send(descriptor, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT) == std::ssize(text);
}

// Reads until the server ends the connection; false when it does not in time or nothing came.
bool read_answer(int descriptor) {
  const Clock::time_point deadline = Clock::now() + kProbePatience;
  bool some = false;
  while (true) {
    pollfd waiting{descriptor, POLLIN, 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left <= 0ms || ::poll(&waiting, 1, static_cast<int>(left.count())) <= 0) return false;
    char buffer[4096];
    const ssize_t got = ::recv(descriptor, buffer, sizeof buffer, 0);
    if (got <= 0) return got == 0 && some;
    some = true;
  }
}

}  // namespace

Hostile::Hostile(const std::string& http, const std::string& endpoint, const wire::ClientKeys& viewer,
                 int slow, int flooding) {
  const uint16_t port = port_of(http);
  threads_.emplace_back([this, port, slow] { drip(port, slow); });
  threads_.emplace_back([this, endpoint, viewer, flooding] { flood(endpoint, viewer, flooding); });
  threads_.emplace_back([this, port] { probe(port); });
}

Hostile::~Hostile() {
  stop_ = true;
}

HostileFigures Hostile::stop() {
  stop_ = true;
  threads_.clear();
  if (!flood_ended_.empty()) throw NetworkError("the flood ended by itself: " + flood_ended_);
  return std::move(figures_);
}

void Hostile::drip(uint16_t port, int connections) {
  std::vector<int> open(static_cast<size_t>(connections), -1);
  while (!stop_) {
    for (size_t i = 0; i < open.size() && !stop_; ++i) {
      if (open[i] >= 0 && send_all(open[i], "x")) continue;
      if (open[i] >= 0) ::close(open[i]);
      open[i] = connect_from(static_cast<uint32_t>(1 + i % 250) << 8 | 7, port);
      if (open[i] < 0) continue;
      ++figures_.slow_connections;
      send_all(open[i], "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ");
    }
    for (int tenth = 0; tenth < 10 && !stop_; ++tenth) std::this_thread::sleep_for(100ms);
  }
  for (const int descriptor : open)
    if (descriptor >= 0) ::close(descriptor);
}

void Hostile::flood(const std::string& endpoint, const wire::ClientKeys& keys, int connections) {
  try {
    Crowd crowd(endpoint, connections, keys);
    const std::string noise(40, '\xFF');
    const auto send = [&](int member) {
      crowd.send(member, noise);
      ++figures_.unreadable;
    };
    for (Clock::time_point due = Clock::now(); !stop_; due += kFloodEvery) {
      due = std::max(due, Clock::now() - kFloodEvery);  // what this thread was too late for is not made up
      std::this_thread::sleep_until(due);
      for (int i = 0; i < kFloodAtOnce; ++i)
        for (int member = 0; member < connections; ++member) send(member);
      while (crowd.receive(Duration::zero())) {  // whatever the answers say
      }
    }
  } catch (const std::exception& error) {
    flood_ended_ = error.what();
  }
}

void Hostile::probe(uint16_t port) {
  while (!stop_) {
    const Clock::time_point asked = Clock::now();
    const int descriptor = connect_from(1, port);
    const bool answered = descriptor >= 0 &&
                          send_all(descriptor, "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") &&
                          read_answer(descriptor);
    if (descriptor >= 0) ::close(descriptor);
    const std::chrono::duration<double, std::milli> took = Clock::now() - asked;
    figures_.probe_ms.push_back(answered ? took.count() : 5'000);
    std::this_thread::sleep_for(100ms);
  }
}

}  // namespace allot::bench
