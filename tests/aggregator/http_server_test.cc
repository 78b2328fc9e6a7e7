#include "aggregator/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "aggregator/http_address.h"
#include "aggregator/http_request.h"
#include "base/error.h"
#include "tests/names.h"

namespace allot::aggregator {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using testing::ThrowsMessage;
using namespace std::chrono_literals;

// A connection to the server that sends whatever a test likes.
class Peer {
 public:
  explicit Peer(const std::string& url) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = ::htons(static_cast<uint16_t>(std::stoi(url.substr(url.rfind(':') + 1))));
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  ~Peer() { ::close(socket_); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  void send(const std::string& text) { (void)::send(socket_, text.data(), text.size(), MSG_NOSIGNAL); }
  // Everything until the server closes the connection.
  std::string receive() {
    std::string text;
    char buffer[4096];
    ssize_t count = 0;
    while ((count = ::recv(socket_, buffer, sizeof buffer, 0)) > 0)
      text.append(buffer, static_cast<size_t>(count));
    return text;
  }

 private:
  int socket_;
};

std::string ask(const HttpServer& server, const std::string& line, const std::string& host = "localhost:1",
                const std::string& rest = "") {
  Peer peer(server.url());
  peer.send(line + " HTTP/1.1\r\nHost: " + host + "\r\n" + rest + "\r\n");
  return peer.receive();
}

class HttpServerTest : public testing::Test {
 protected:
  HttpServer::Handlers handlers() {
    return {{"/hello",
             [this] {
               ++calls_;
               return HttpResponse{.body = "hello\n", .headers = {{"X-Own", "yes"}}};
             }},
            {"/broken", []() -> HttpResponse { throw std::runtime_error("a secret"); }}};
  }
  std::atomic<int> calls_{0};
  HttpServer server_{{.host = "127.0.0.1"}, handlers()};
};

TEST(HttpAddressTest, AddressesAreHostAndPort) {
  EXPECT_EQ(parse_http_address("127.0.0.1:8080").port, 8080);
  EXPECT_EQ(parse_http_address("0.0.0.0:*").port, 0);
  EXPECT_EQ(parse_http_address("[::1]:80").host, "::1");
  for (const char* loopback : {"127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1"}) {
    EXPECT_TRUE(parse_http_address(loopback).loopback()) << loopback;
  }
  for (const char* open : {"0.0.0.0:1", "10.0.0.1:1", "[::]:1"}) {
    EXPECT_FALSE(parse_http_address(open).loopback()) << open;
  }
  for (const char* wrong :
       {"", "8080", ":8080", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:80x",
        "::1:80", "host.example:80", "127.evil.example:80", "http://127.0.0.1:80"}) {
    EXPECT_THAT([&] { (void)parse_http_address(wrong); },
                ThrowsMessage<InvalidArgument>(Names("ADDRESS:PORT")))
        << wrong;
  }
}

TEST_F(HttpServerTest, AnswersGetWithTheBodyAndHeadWithoutIt) {
  EXPECT_THAT(ask(server_, "GET /hello"),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("X-Own: yes"), HasSubstr("\r\n\r\nhello\n"),
                    HasSubstr("X-Content-Type-Options: nosniff"), HasSubstr("Cache-Control: no-store"),
                    HasSubstr("Content-Type: text/plain")));
  EXPECT_THAT(ask(server_, "HEAD /hello"),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("Content-Length: 6"), Not(HasSubstr("hello\n"))));
}

TEST_F(HttpServerTest, WhatWouldChangeSomethingIsRefusedWithoutBeingRead) {
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH", "OPTIONS"}) {
    const std::string answer =
        ask(server_, std::string(method) + " /hello", "localhost", "Content-Length: 1000000000\r\n");
    EXPECT_THAT(answer, AllOf(HasSubstr(" 405 "), HasSubstr("Allow: GET, HEAD"))) << method;
  }
  EXPECT_EQ(calls_, 0);
}

TEST_F(HttpServerTest, PathsThatAreNotThereAreNamedWithThoseThatAre) {
  for (const char* path : {"/", "/hello/", "/../hello", "/hell", "/etc/passwd"}) {
    EXPECT_THAT(ask(server_, std::string("GET ") + path),
                AllOf(HasSubstr(" 404 "), HasSubstr("/broken /hello")))
        << path;
  }
}

TEST_F(HttpServerTest, OnLoopbackAForeignHostIsRefused) {
  for (const char* host :
       {"evil.example", "evil.example:80", "localhost.evil.example", "10.0.0.1", "", "127.0.0.1.evil.example",
        "127.0.0.1@evil.example", "127.0.0.1, evil.example", "127.evil.example", "127.0.0.1:", "127.0.0.1:x",
        "127.0.0.1:80:80", "[::1].evil.example", "[127.0.0.1]", "::1", "[::1"}) {
    EXPECT_THAT(ask(server_, "GET /hello", host), HasSubstr(" 421 ")) << host;
  }
  for (const char* host : {"localhost", "127.0.0.1", "127.0.0.1:99", "[::1]:99"}) {
    EXPECT_THAT(ask(server_, "GET /hello", host), HasSubstr(" 200 ")) << host;
  }
}

TEST_F(HttpServerTest, AnErrorStaysInside) {
  EXPECT_THAT(ask(server_, "GET /broken"), AllOf(HasSubstr(" 500 "), Not(HasSubstr("secret"))));
  EXPECT_THAT(ask(server_, "GET /hello"), HasSubstr(" 200 "));
}

TEST_F(HttpServerTest, GarbageAndOversizedRequestsCostOneConnectionEach) {
  const std::string long_text(100'000, 'a');
  for (const std::string& text : {std::string("\r\n\r\n"), std::string("no http at all\r\n\r\n"),
                                  std::string("\x16\x03\x01\x02", 4) + "\r\n\r\n",
                                  "GET /" + long_text + " HTTP/1.1\r\nHost: localhost\r\n\r\n",
                                  "GET /hello HTTP/1.1\r\nHost: localhost\r\nX: " + long_text + "\r\n\r\n"}) {
    Peer peer(server_.url());
    peer.send(text);
    EXPECT_THAT(peer.receive(), Not(HasSubstr(" 200 "))) << text.substr(0, 40);
  }
  EXPECT_THAT(ask(server_, "GET /hello"), HasSubstr(" 200 "));
}

TEST_F(HttpServerTest, ManyClientsAtOnceAreAllAnswered) {
  std::atomic<int> right{0};
  {
    std::vector<std::jthread> clients;
    for (int i = 0; i < 40; ++i) {
      clients.emplace_back([&] { right += ask(server_, "GET /hello").ends_with("hello\n") ? 1 : 0; });
    }
  }
  EXPECT_EQ(right, 40);
}

// A client that sends a byte now and then, for ever, is let go when its time for the whole request is over.
TEST_F(HttpServerTest, TheWholeRequestHasADeadlineHoweverItsBytesDripIn) {
  HttpServer server({.host = "127.0.0.1"}, handlers(), {.patience = 300ms});
  Peer peer(server.url());
  peer.send("GET /hello HTTP/1.1\r\nHost: localhost\r\nX: ");
  std::jthread dripping([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      peer.send("x");
      std::this_thread::sleep_for(20ms);
    }
  });
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(peer.receive(), "");
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
}

TEST_F(HttpServerTest, TwoHundredSlowConnectionsLeaveAProbeItsSpeed) {
  std::vector<std::unique_ptr<Peer>> slow;
  for (int i = 0; i < 200; ++i) {
    slow.push_back(std::make_unique<Peer>(server_.url()));
    slow.back()->send(i % 2 == 0 ? "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " : "");
  }
  std::vector<std::chrono::steady_clock::duration> times;
  for (int i = 0; i < 20; ++i) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THAT(ask(server_, "GET /hello"), HasSubstr(" 200 "));
    times.push_back(std::chrono::steady_clock::now() - start);
  }
  std::nth_element(times.begin(), times.begin() + 10, times.end());
  EXPECT_LT(times[10], 100ms);
}

TEST_F(HttpServerTest, TheOldestConnectionMakesRoomForTheNext) {
  HttpServer server({.host = "127.0.0.1"}, handlers(), {.patience = 60s, .most_connections_of_address = 4});
  std::vector<std::unique_ptr<Peer>> idle;
  for (int i = 0; i < 4; ++i) idle.push_back(std::make_unique<Peer>(server.url()));
  EXPECT_THAT(ask(server, "GET /hello"), HasSubstr(" 200 "));
  EXPECT_EQ(idle[0]->receive(), "") << "it was closed, long before its time was over";
  idle[3]->send("GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(idle[3]->receive(), HasSubstr(" 200 "));
}

TEST_F(HttpServerTest, ARangeIsIgnoredAndTheWholeAnswerComesOnce) {
  std::string ranges = "Range: bytes=0-";
  for (int i = 0; i < 2600; ++i) ranges += ",0-";
  EXPECT_THAT(
      ask(server_, "GET /hello", "localhost", ranges + "\r\n"),
      AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("Content-Length: 6"), HasSubstr("\r\n\r\nhello\n")));
}

// Clients that ask for a large answer and do not read it.
TEST_F(HttpServerTest, AnswersThatNobodyReadsAreBoundedAndProbesAreAnsweredBesideThem) {
  const std::string large(size_t{8} << 20, 'a');
  HttpServer::Handlers pages = handlers();
  pages["/large"] = [&] { return HttpResponse{.body = large}; };
  HttpServer server({.host = "127.0.0.1"}, pages, {.patience = 60s});
  std::vector<std::unique_ptr<Peer>> unread;
  for (int i = 0; i < 8; ++i) {
    unread.push_back(std::make_unique<Peer>(server.url()));
    unread.back()->send("GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }
  EXPECT_THAT(ask(server, "GET /hello"), HasSubstr(" 200 "));
  int refused = 0;
  for (const auto& peer : unread) refused += peer->receive().starts_with("HTTP/1.1 503") ? 1 : 0;
  EXPECT_GE(refused, 6) << "16 MiB may wait";
}

TEST(HttpRequestTest, ReadsARequestOnceItIsWhole) {
  const std::string text = "HEAD /api/run?x=1 HTTP/1.0\r\nhOsT:\t localhost:80 \r\nX:y\r\n\r\nrest";
  const size_t whole = text.size() - 4;
  for (size_t length = 0; length < whole; ++length) {
    EXPECT_FALSE(parse_request(text.substr(0, length))) << length;
  }
  const auto parsed = parse_request(text);
  ASSERT_TRUE(parsed && parsed->request);
  EXPECT_EQ(parsed->request->method, "HEAD");
  EXPECT_EQ(parsed->request->path, "/api/run");
  EXPECT_EQ(parsed->request->host, "localhost:80");
}

TEST(HttpRequestTest, WhatIsNoRequestHasAStatusOfItsOwn) {
  const std::string long_text(kMostRequestBytes, 'a');
  const std::vector<std::pair<std::string, int>> cases = {
      {"GET / HTTP/2.0\r\n\r\n", 400},
      {"GET /\r\n\r\n", 400},
      {"GET  / HTTP/1.1\r\n\r\n", 400},
      {"GET http://localhost/ HTTP/1.1\r\n\r\n", 400},
      {"G(T / HTTP/1.1\r\n\r\n", 400},
      {"GET /\x01 HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: localhost\nX: y\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400},
      {"GET /" + long_text, 414},
      {"GET / HTTP/1.1\r\nX: " + long_text, 431}};
  for (const auto& [text, status] : cases) {
    const auto parsed = parse_request(text);
    ASSERT_TRUE(parsed) << text.substr(0, 60);
    EXPECT_FALSE(parsed->request) << text.substr(0, 60);
    EXPECT_EQ(parsed->status, status) << text.substr(0, 60);
    EXPECT_FALSE(parsed->problem.empty());
  }
}

TEST_F(HttpServerTest, APortInUseIsNamed) {
  const std::string url = server_.url();
  const std::string port = url.substr(url.rfind(':') + 1, url.size() - url.rfind(':') - 2);
  EXPECT_THAT([&] { HttpServer second(parse_http_address("127.0.0.1:" + port), {}); },
              ThrowsMessage<NetworkError>(Names("127.0.0.1:" + port, "in use")));
}

}  // namespace
}  // namespace allot::aggregator
