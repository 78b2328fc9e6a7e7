#include "tests/chaos/network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <stdexcept>

namespace allot::chaos {
namespace {

constexpr const char* kDevice = "allot0";
constexpr uint32_t kNetwork = 0x0a530000;  // 10.83.0.0; namespaces of their own, so it meets no other

[[noreturn]] void fail(const std::string& doing) {
  throw std::runtime_error(fmt::format("{}: {}", doing, std::strerror(errno)));
}

uint32_t ip_of(int host) {
  return kNetwork + static_cast<uint32_t>(host) + 1;
}

// Runs `work` on a thread of its own, so that the namespace it enters stays behind with that thread.
void on_own_thread(const std::function<void()>& work) {
  std::exception_ptr failure;
  std::thread([&] {
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
}

struct Socket {
  int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ~Socket() { ::close(fd); }
};

ifreq request_for(const char* device) {
  ifreq request{};
  std::strncpy(request.ifr_name, device, IFNAMSIZ - 1);
  return request;
}

void bring_up(const Socket& socket, const char* device) {
  ifreq request = request_for(device);
  if (::ioctl(socket.fd, SIOCGIFFLAGS, &request) != 0) fail(fmt::format("reading the flags of {}", device));
  request.ifr_flags |= IFF_UP | IFF_RUNNING;
  if (::ioctl(socket.fd, SIOCSIFFLAGS, &request) != 0) fail(fmt::format("bringing {} up", device));
}

void set_address(const Socket& socket, unsigned long which, uint32_t address) {
  ifreq request = request_for(kDevice);
  auto* target = reinterpret_cast<sockaddr_in*>(&request.ifr_addr);
  target->sin_family = AF_INET;
  target->sin_addr.s_addr = htonl(address);
  if (::ioctl(socket.fd, which, &request) != 0) fail("giving a host its address");
}

}  // namespace

std::string Network::address(int host) {
  return fmt::format("10.83.0.{}", host + 1);
}

Network::Host Network::make_host(int number) {
  Host host;
  on_own_thread([&] {
    if (::unshare(CLONE_NEWNET) != 0) fail("making a network namespace (needs root or CAP_SYS_ADMIN)");
    host.name_space = ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    if (host.name_space < 0) fail("opening /proc/thread-self/ns/net");
    host.tunnel = ::open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (host.tunnel < 0) fail("opening /dev/net/tun");
    ifreq request = request_for(kDevice);
    request.ifr_flags = IFF_TUN | IFF_NO_PI;
    if (::ioctl(host.tunnel, TUNSETIFF, &request) != 0) fail("making a TUN device");
    const Socket socket;
    bring_up(socket, "lo");
    set_address(socket, SIOCSIFADDR, ip_of(number));
    set_address(socket, SIOCSIFNETMASK, 0xffffff00);
    bring_up(socket, kDevice);
  });
  return host;
}

std::optional<std::string> Network::obstacle() {
  try {
    const Network probe(1, 0);
    return std::nullopt;
  } catch (const std::exception& error) {
    return error.what();
  }
}

Network::Network(int hosts, uint64_t seed) : cables_(static_cast<size_t>(hosts)), random_(seed) {
  for (int number = 0; number < hosts; ++number) hosts_.push_back(make_host(number));
  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) fail("making an eventfd");
  router_ = std::thread([this] { route(); });
}

Network::~Network() {
  stop_ = true;
  ::eventfd_write(wake_, 1);
  router_.join();
  ::close(wake_);
  for (const Host& host : hosts_) {
    ::close(host.tunnel);
    ::close(host.name_space);
  }
}

void Network::run_on(int host, const std::function<void()>& work) {
  on_own_thread([&] {
    if (::setns(hosts_.at(static_cast<size_t>(host)).name_space, CLONE_NEWNET) != 0)
      fail(fmt::format("entering host {}", host));
    work();
  });
}

void Network::set_cable(int host, const Cable& cable) {
  const std::lock_guard lock(mutex_);
  cables_.at(static_cast<size_t>(host)) = cable;
}

PacketCounts Network::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void Network::route() {
  std::vector<pollfd> watched;
  for (const Host& host : hosts_) watched.push_back({host.tunnel, POLLIN, 0});
  watched.push_back({wake_, POLLIN, 0});
  std::array<char, 65'536> buffer;
  while (!stop_) {
    ::poll(watched.data(), watched.size(), until_next(std::chrono::steady_clock::now()));
    const Instant now = std::chrono::steady_clock::now();
    const std::lock_guard lock(mutex_);
    for (int from = 0; from < hosts(); ++from) {
      while (true) {
        const ssize_t size = ::read(hosts_[static_cast<size_t>(from)].tunnel, buffer.data(), buffer.size());
        if (size <= 0) break;
        take(from, {buffer.data(), static_cast<size_t>(size)}, now);
      }
    }
    deliver_due(now);
  }
}

void Network::take(int from, std::string bytes, Instant now) {
  iphdr header;
  if (bytes.size() < sizeof header) return;
  std::memcpy(&header, bytes.data(), sizeof header);
  const int to = static_cast<int>(ntohl(header.daddr) - kNetwork) - 1;
  if (header.version != 4 || to < 0 || to >= hosts()) return;  // what systems say to everybody
  const Cable& near = cables_[static_cast<size_t>(from)];
  const Cable& far = cables_[static_cast<size_t>(to)];
  if (near.cut || far.cut) {
    ++counts_.cut;
    return;
  }
  const auto happens = [&](double chance) {
    return std::uniform_real_distribution<>(0, 1)(random_) < chance;
  };
  if (happens(near.loss) || happens(far.loss)) {
    ++counts_.lost;
    return;
  }
  const int copies = happens(near.duplicate) || happens(far.duplicate) ? 2 : 1;
  counts_.duplicated += copies - 1;
  const Packet packet{from, to, ++last_sent_[{from, to}], std::move(bytes)};
  for (int copy = 0; copy < copies; ++copy) {
    auto due = now + near.delay + far.delay;
    for (const Cable& cable : {near, far}) {
      const double most = std::chrono::duration<double>(cable.jitter).count();
      const std::chrono::duration<double> more(std::uniform_real_distribution<>(0, most)(random_));
      due += std::chrono::duration_cast<std::chrono::microseconds>(more);
    }
    under_way_.emplace(due, packet);
  }
}

void Network::deliver_due(Instant now) {
  while (!under_way_.empty() && under_way_.begin()->first <= now) {
    const Packet& packet = under_way_.begin()->second;
    int64_t& last = last_delivered_[{packet.from, packet.to}];
    counts_.overtaken += packet.sent < last;
    last = std::max(last, packet.sent);
    // A host that takes no more at this moment drops the packet, as a full queue does.
    const ssize_t written =
        ::write(hosts_[static_cast<size_t>(packet.to)].tunnel, packet.bytes.data(), packet.bytes.size());
    ++(written < 0 ? counts_.lost : counts_.delivered);
    under_way_.erase(under_way_.begin());
  }
}

int Network::until_next(Instant now) const {
  if (under_way_.empty()) return -1;
  const auto left = std::chrono::ceil<Duration>(under_way_.begin()->first - now);
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

}  // namespace allot::chaos
