#include "app/serve/http_listen.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

namespace allot::app {
namespace {

TEST(HttpListenTest, HundredsOfConnectionsThatComeAtOnceWaitAndNoneIsTurnedAway) {
  httplib::Server server;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = ::htons(static_cast<uint16_t>(bind_http(&server, {.host = "127.0.0.1"})));
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  int connected = 0;
  std::vector<int> sockets;
  for (int i = 0; i < 200; ++i) {  // nobody accepts them
    sockets.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    ::connect(sockets.back(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    pollfd ready{.fd = sockets.back(), .events = POLLOUT, .revents = 0};
    connected += ::poll(&ready, 1, 500) == 1 && (ready.revents & (POLLERR | POLLHUP)) == 0 ? 1 : 0;
    if (connected <= i) break;
  }
  for (const int socket : sockets) ::close(socket);
  EXPECT_EQ(connected, 200);
}

}  // namespace
}  // namespace allot::app
