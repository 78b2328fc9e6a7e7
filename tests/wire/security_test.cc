// What strangers, cheats and broken peers can do to a listening server, over real sockets of the loopback
// address.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "tests/names.h"
#include "tests/wire/deadline.h"
#include "wire/codec.h"
#include "wire/endpoint.h"
#include "wire/messages.pb.h"
#include "wire/status_query.h"

namespace allot::wire {
namespace {

using testing::AnyOf;
using testing::ThrowsMessage;
using namespace std::chrono_literals;

// Long enough for a frame that must not come to come, on a busy machine.
constexpr Duration kNever = 300ms;

// A TCP connection without ZeroMQ.
class RawConnection {
 public:
  explicit RawConnection(const std::string& endpoint) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = ::htons(static_cast<uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  RawConnection(RawConnection&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  ~RawConnection() {
    if (socket_ >= 0) ::close(socket_);
  }
  void send(std::string_view bytes) {
    (void)!::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);  // the server may have hung up
  }
  // What comes within `timeout`; nothing when the peer has closed.
  std::optional<std::string> receive(Duration timeout) {
    pollfd item{socket_, POLLIN, 0};
    if (::poll(&item, 1, static_cast<int>(timeout.count())) <= 0) return "";
    char buffer[65536];
    const ssize_t size = ::recv(socket_, buffer, sizeof buffer, 0);
    if (size <= 0) return std::nullopt;
    return std::string(buffer, static_cast<size_t>(size));
  }
  int descriptor() const { return socket_; }

 private:
  int socket_;
};

class Security : public testing::Test {
 protected:
  Security() { allow(worker_.public_key.text() + " node-a\n"); }

  void allow(const std::string& text) { write_file_atomically(allow_list(), text); }
  std::filesystem::path allow_list() const { return directory_.path() / "keys.txt"; }
  ServerOptions with_keys() const { return {.keys = ServerKeys{server_, allow_list()}}; }
  ClientKeys keys_of(const KeyPair& own) const { return {server_.public_key, own}; }

  // The server still talks to whom it should.
  void expect_serves(Server& server) {
    Client client(server.endpoint(), keys_of(worker_));
    client.send("question");
    const auto question = server.receive(kDeadline);
    ASSERT_TRUE(question.has_value());
    EXPECT_EQ(question->frame, "question");
    EXPECT_EQ(question->from, (KeyHolder{"node-a", Role::kWorker}));
    server.send(question->peer, "answer");
    EXPECT_EQ(client.receive(kDeadline), "answer");
  }

  // Waits for the end of the client's handshake.
  static std::string failure_of(Client& client) {
    for (Duration waited{}; waited < kDeadline; waited += 20ms) {
      if (const auto failure = client.handshake_failure()) return *failure;
      EXPECT_EQ(client.receive(20ms), std::nullopt);
    }
    return "no failure";
  }

  TemporaryDirectory directory_;
  KeyPair server_ = make_key_pair();
  KeyPair worker_ = make_key_pair();
};

TEST_F(Security, AKnownKeyIsServedUnderItsName) {
  Server server(with_keys());
  expect_serves(server);
}

TEST_F(Security, AKeyThatIsNotListedIsToldSoAndNothingOfItArrives) {
  Server server(with_keys());
  Client stranger(server.endpoint(), keys_of(make_key_pair()));
  stranger.send("let me in");
  EXPECT_THAT(failure_of(stranger), Names("allow-list"));
  EXPECT_EQ(server.receive(kNever), std::nullopt);
  expect_serves(server);
}

TEST_F(Security, APeerWithoutKeysIsNotHeard) {
  Server server(with_keys());
  Client plain(server.endpoint());
  plain.send("let me in");
  EXPECT_EQ(server.receive(kNever), std::nullopt);
  EXPECT_THAT(failure_of(plain), Names("keys"));
  expect_serves(server);
}

TEST_F(Security, AWorkerDoesNotTalkToAServerWithAnotherKey) {
  const KeyPair impostor = make_key_pair();
  Server server({.keys = ServerKeys{impostor, allow_list()}});
  Client client(server.endpoint(), keys_of(worker_));
  client.send("a secret");
  EXPECT_THAT(failure_of(client), Names("public key"));
  EXPECT_EQ(server.receive(0ms), std::nullopt);
}

TEST_F(Security, AWorkerWithKeysDoesNotTalkToAServerWithoutOnes) {
  Server server({});
  Client client(server.endpoint(), keys_of(worker_));
  client.send("a secret");
  EXPECT_EQ(server.receive(kNever), std::nullopt);
  EXPECT_THAT(failure_of(client), Names("keys"));
}

TEST_F(Security, AKeyThatIsAddedMayConnectWithoutARestart) {
  Server server(with_keys());
  const KeyPair late = make_key_pair();
  {
    Client early(server.endpoint(), keys_of(late));
    EXPECT_THAT(failure_of(early), Names("allow-list"));
  }
  allow(worker_.public_key.text() + " node-a\n" + late.public_key.text() + " node-b operator\n");
  Client client(server.endpoint(), keys_of(late));
  client.send("here");
  const auto message = server.receive(kDeadline);
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->from, (KeyHolder{"node-b", Role::kOperator}));
}

// While the server changes its key, whoever knows both is served before and after, whichever comes first.
TEST_F(Security, ANewKeyOfTheServerIsTakenFromItsFileWithoutARestart) {
  const std::filesystem::path file = directory_.path() / "server.key";
  write_key_pair(file, server_);
  ServerOptions options = with_keys();
  options.keys->own_file = file;
  Server server(options);
  const std::string endpoint = server.endpoint();
  EXPECT_EQ(server.take_new_key(), std::nullopt) << "the file is as it was";
  Client connected(endpoint, keys_of(worker_));
  connected.send("before");
  ASSERT_TRUE(server.receive(kDeadline).has_value());

  const KeyPair next = make_key_pair();
  write_file_atomically(file, "half a key");
  EXPECT_EQ(server.take_new_key(), std::nullopt) << "what cannot be read changes nothing";
  expect_serves(server);
  std::filesystem::remove(file);
  EXPECT_EQ(server.take_new_key(), std::nullopt);
  write_key_pair(file, next);
  EXPECT_EQ(server.take_new_key(), next.public_key);
  EXPECT_EQ(server.take_new_key(), std::nullopt) << "it has been taken";
  EXPECT_EQ(server.endpoint(), endpoint);

  Client old(endpoint, keys_of(worker_));
  EXPECT_THAT(failure_of(old), Names("public key"));
  EXPECT_TRUE(old.lacks_key());
  connected.send("over the connection of before");
  EXPECT_EQ(server.receive(kNever), std::nullopt);
  for (ClientKeys both : {ClientKeys{server_.public_key, worker_, next.public_key},
                          ClientKeys{next.public_key, worker_, server_.public_key}}) {
    EXPECT_EQ(both.try_other_server(), true);
    EXPECT_EQ(both, (ClientKeys{next.public_key, worker_, server_.public_key})) << "in whatever order";
    if (both.server != next.public_key) both.try_other_server();
    Client client(endpoint, both);
    client.send("after");
    const auto message = server.receive(kDeadline);
    ASSERT_TRUE(message.has_value());
    EXPECT_EQ(message->frame, "after");
  }
  EXPECT_NE((ClientKeys{next.public_key, worker_}), keys_of(worker_));
  server_ = next;
  expect_serves(server);
}

TEST_F(Security, AKeyThatIsRemovedIsHeardNoMoreThoughItIsConnected) {
  Server server(with_keys());
  Client client(server.endpoint(), keys_of(worker_));
  client.send("1");
  ASSERT_TRUE(server.receive(kDeadline).has_value());
  const KeyPair other = make_key_pair();
  allow(other.public_key.text() + " node-b\n");
  {
    Client second(server.endpoint(), keys_of(other));  // its coming makes the server look at the file
    second.send("here");
    const auto message = server.receive(kDeadline);
    ASSERT_TRUE(message.has_value());
    EXPECT_EQ(message->from.name, "node-b");
  }
  client.send("2");
  EXPECT_EQ(server.receive(kNever), std::nullopt);
}

TEST_F(Security, AnAllowListThatIsBrokenWhileRunningChangesNothing) {
  Server server(with_keys());
  allow("rubbish\n");
  expect_serves(server);
  EXPECT_THROW(Server second(with_keys()), CorruptFile);
}

TEST_F(Security, AStatusQueryWithAnUnknownKeyFailsAtOnceAndSaysWhy) {
  Server server(with_keys());
  EXPECT_THAT([&] { (void)query_status(server.endpoint(), kDeadline, keys_of(make_key_pair())); },
              ThrowsMessage<NetworkError>(Names("allow-list")));
}

TEST_F(Security, FurtherConnectionsThanAllowedAreRefusedUntilOthersLeave) {
  ServerOptions options = with_keys();
  options.max_connections = 2;
  Server server(options);
  auto speak = [&](Client& client) {
    client.send("here");
    return server.receive(kDeadline).has_value();
  };
  std::optional<Client> first(std::in_place, server.endpoint(), keys_of(worker_));
  Client second(server.endpoint(), keys_of(worker_));
  ASSERT_TRUE(speak(*first));
  ASSERT_TRUE(speak(second));
  {
    Client third(server.endpoint(), keys_of(worker_));
    third.send("here");
    EXPECT_THAT(failure_of(third), Names("connections"));
    EXPECT_EQ(server.receive(0ms), std::nullopt);
  }
  first.reset();
  // The server learns of the end of a connection a moment later.
  bool heard = false;
  for (int attempt = 0; attempt < 20 && !heard; ++attempt) {
    Client fourth(server.endpoint(), keys_of(worker_));
    fourth.send("here");
    heard = server.receive(500ms).has_value();
  }
  EXPECT_TRUE(heard);
}

// The authenticator answers from one socket after the other, each for 64 connections.
TEST_F(Security, HundredsOfConnectionsAtOnceAreAllServed) {
  constexpr size_t kClients = 200;
  Server server(with_keys());
  std::vector<std::unique_ptr<Client>> clients;
  for (size_t i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<Client>(server.endpoint(), keys_of(worker_)));
    clients.back()->send(std::to_string(i));
  }
  std::set<std::string> heard;
  // The socket may wake up without a whole frame. A connection whose handshake took too long on a busy
  // machine is made again, and what the client had given to the first one is lost: as a worker does, it asks
  // again. Only half a minute of silence is a failure.
  for (int silences = 0; heard.size() < kClients;) {
    if (const auto message = server.receive(500ms)) {
      heard.insert(message->frame);
      continue;
    }
    ASSERT_LT(++silences, 60) << heard.size() << " of " << kClients << " were heard";
    for (size_t i = 0; i < kClients; ++i)
      if (const std::string question = std::to_string(i); !heard.contains(question))
        clients[i]->send(question);
  }
}

TEST_F(Security, RandomBytesNeitherStopNorWedgeTheServer) {
  for (const bool keys : {true, false}) {
    Server server(keys ? with_keys() : ServerOptions{});
    std::mt19937 chance(7);
    std::vector<RawConnection> open;
    for (int connection = 0; connection < 100; ++connection) {
      RawConnection raw(server.endpoint());
      std::string bytes(chance() % 2000, '\0');
      for (char& byte : bytes) byte = static_cast<char>(chance());
      // Half of them begin as ZMTP 3 does, so that what follows is looked at.
      if (connection % 2 == 0)
        bytes = std::string("\xff\0\0\0\0\0\0\0\1\x7f\3\0", 12) + (keys ? "CURVE" : "NULL") + bytes;
      raw.send(bytes);
      if (connection % 4 < 2) open.push_back(std::move(raw));
    }
    if (keys) {
      expect_serves(server);
    } else {
      Client client(server.endpoint());
      client.send("question");
      std::optional<Server::Message> message;
      do message = server.receive(kDeadline);
      while (message && message->frame != "question");
      EXPECT_TRUE(message.has_value());
    }
  }
}

TEST_F(Security, HalfHandshakesAndSlowSendersHoldNobodyUp) {
  Server server(with_keys());
  std::vector<RawConnection> slow;
  const std::string greeting = std::string("\xff\0\0\0\0\0\0\0\1\x7f\3\0CURVE", 17) + std::string(47, '\0');
  for (size_t bytes = 0; bytes <= greeting.size(); ++bytes) {
    slow.emplace_back(server.endpoint());
    slow.back().send(greeting.substr(0, bytes));
  }
  for (RawConnection& raw : slow) raw.send(std::string(1, '\0'));
  expect_serves(server);
}

TEST_F(Security, AnUnfinishedHandshakeIsEndedAfterItsTime) {
  ServerOptions options = with_keys();
  options.handshake = 200ms;
  Server server(options);
  RawConnection silent(server.endpoint());
  std::optional<std::string> bytes;
  do bytes = silent.receive(kDeadline);  // the server's greeting comes first
  while (bytes && !bytes->empty());
  EXPECT_FALSE(bytes.has_value()) << "the connection is still open";
}

TEST_F(Security, AFrameOverTheLimitEndsItsConnectionOnly) {
  Server server(with_keys());
  Client large(server.endpoint(), keys_of(worker_));
  large.send(std::string(kMaxRequestBytes, 'x'));
  const auto fits = server.receive(kDeadline);
  ASSERT_TRUE(fits.has_value());
  EXPECT_EQ(fits->frame.size(), kMaxRequestBytes);
  large.send(std::string(kMaxRequestBytes + 1000, 'x'));
  EXPECT_EQ(server.receive(kNever), std::nullopt);
  expect_serves(server);
}

TEST_F(Security, AnOtherProtocolVersionIsAValueForTheCaller) {
  Server server(with_keys());
  Client old(server.endpoint(), keys_of(worker_));
  Envelope envelope;
  envelope.set_protocol_version(kProtocolVersion + 1);
  envelope.mutable_heartbeat();
  old.send(envelope.SerializeAsString());
  const auto message = server.receive(kDeadline);
  ASSERT_TRUE(message.has_value());
  const auto decoded = decode(message->frame);
  ASSERT_TRUE(std::holds_alternative<DecodeFailure>(decoded));
  EXPECT_EQ(std::get<DecodeFailure>(decoded).fault, DecodeFault::kOtherVersion);
}

TEST_F(Security, ACapturedSessionSentAgainBringsNothing) {
  Server server(with_keys());
  // A proxy that writes down what the worker says.
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  Client client("tcp://127.0.0.1:" + std::to_string(::ntohs(address.sin_port)), keys_of(worker_));
  client.send("pay once");
  const int inner = ::accept(listener, nullptr, nullptr);
  ASSERT_GE(inner, 0);
  RawConnection outer(server.endpoint());
  std::string said;
  std::optional<Server::Message> message;
  for (Duration waited{}; waited < kDeadline && !message; waited += 10ms) {
    pollfd items[2] = {{inner, POLLIN, 0}, {outer.descriptor(), POLLIN, 0}};
    ::poll(items, 2, 10);
    char buffer[4096];
    if ((items[0].revents & POLLIN) != 0) {
      const ssize_t count = ::recv(inner, buffer, sizeof buffer, 0);
      ASSERT_GT(count, 0);
      said.append(buffer, static_cast<size_t>(count));
      outer.send({buffer, static_cast<size_t>(count)});
    }
    if ((items[1].revents & POLLIN) != 0) {
      const auto answer = outer.receive(0ms);
      ASSERT_TRUE(answer.has_value());
      (void)!::send(inner, answer->data(), answer->size(), MSG_NOSIGNAL);
    }
    message = server.receive(0ms);
  }
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->frame, "pay once");
  EXPECT_EQ(said.find("pay once"), std::string::npos) << "the message can be read on the way";

  RawConnection replay(server.endpoint());
  replay.send(said);
  EXPECT_EQ(server.receive(kNever), std::nullopt);
  ::close(inner);
  ::close(listener);
  expect_serves(server);
}

}  // namespace
}  // namespace allot::wire
