// Real sockets between two namespaces: what the cables are told is what datagrams meet.
#include "tests/chaos/network.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <stdexcept>

namespace allot::chaos {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using namespace std::chrono_literals;

constexpr uint16_t kPort = 7000;

sockaddr_in address_of(int host) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(kPort);
  ::inet_pton(AF_INET, Network::address(host).c_str(), &address.sin_addr);
  return address;
}

// Takes and sends numbered datagrams on one host.
class Mailbox {
 public:
  Mailbox(Network* network, int host) {
    network->run_on(host, [&] { socket_ = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0); });
    const sockaddr_in own = address_of(host);
    if (::bind(socket_, reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0)
      throw std::runtime_error("a host's own address cannot be bound");
  }
  ~Mailbox() { ::close(socket_); }
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  void send(int host, int first, int count) {
    const sockaddr_in to = address_of(host);
    for (int number = first; number < first + count; ++number) {
      ::sendto(socket_, &number, sizeof number, 0, reinterpret_cast<const sockaddr*>(&to), sizeof to);
    }
  }
  // Those that come until none does for the time `quiet`.
  std::vector<int> receive(Duration quiet) {
    std::vector<int> numbers;
    int number = 0;
    pollfd readable{socket_, POLLIN, 0};
    while (::poll(&readable, 1, static_cast<int>(quiet.count())) == 1 &&
           ::recv(socket_, &number, sizeof number, 0) == sizeof number) {
      numbers.push_back(number);
    }
    return numbers;
  }

 private:
  int socket_ = -1;
};

class NetworkTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto obstacle = Network::obstacle()) GTEST_SKIP() << "no hosts can be made here: " << *obstacle;
    network_ = std::make_unique<Network>(2, 1);
    near_ = std::make_unique<Mailbox>(network_.get(), 0);
    far_ = std::make_unique<Mailbox>(network_.get(), 1);
  }

  std::unique_ptr<Network> network_;
  std::unique_ptr<Mailbox> near_, far_;
};

TEST_F(NetworkTest, SoundCablesDeliverInOrder) {
  near_->send(1, 0, 50);
  const std::vector<int> arrived = far_->receive(300ms);
  EXPECT_THAT(arrived, SizeIs(50));
  EXPECT_TRUE(std::ranges::is_sorted(arrived));
  EXPECT_EQ(network_->counts().overtaken, 0);
}

TEST_F(NetworkTest, DelaysOfBothCablesAddUp) {
  network_->set_cable(0, {.delay = 100ms});
  network_->set_cable(1, {.delay = 150ms});
  const auto start = std::chrono::steady_clock::now();
  near_->send(1, 0, 1);
  EXPECT_THAT(far_->receive(200ms), IsEmpty());
  EXPECT_THAT(far_->receive(1s), SizeIs(1));
  EXPECT_GE(std::chrono::steady_clock::now() - start, 250ms);
}

TEST_F(NetworkTest, JitterLetsLaterPacketsOvertakeEarlierOnes) {
  network_->set_cable(1, {.jitter = 50ms});
  near_->send(1, 0, 100);
  std::vector<int> arrived = far_->receive(300ms);
  EXPECT_THAT(arrived, SizeIs(100));
  EXPECT_FALSE(std::ranges::is_sorted(arrived));
  EXPECT_GT(network_->counts().overtaken, 10);
}

TEST_F(NetworkTest, LossAndDuplicatesAreAsOftenAsTold) {
  network_->set_cable(1, {.loss = 0.5, .duplicate = 0.25});
  size_t arrived = 0;
  // In portions that the receiver's buffer holds.
  for (int portion = 0; portion < 10; ++portion) {
    near_->send(1, 0, 100);
    arrived += far_->receive(100ms).size();
  }
  const PacketCounts counts = network_->counts();
  EXPECT_NEAR(static_cast<double>(counts.lost), 500, 80);  // five standard deviations of 1,000 coins
  EXPECT_NEAR(static_cast<double>(counts.duplicated), 125, 50);
  EXPECT_EQ(static_cast<int64_t>(arrived), 1000 - counts.lost + counts.duplicated);
}

TEST_F(NetworkTest, NothingPassesACutCableUntilItIsMended) {
  network_->set_cable(1, {.cut = true});
  near_->send(1, 0, 5);
  far_->send(0, 0, 5);
  EXPECT_THAT(far_->receive(200ms), IsEmpty());
  EXPECT_THAT(near_->receive(0ms), IsEmpty());
  EXPECT_EQ(network_->counts().cut, 10);
  network_->set_cable(1, {});
  near_->send(1, 9, 1);
  EXPECT_THAT(far_->receive(300ms), ElementsAre(9));
}

}  // namespace
}  // namespace allot::chaos
