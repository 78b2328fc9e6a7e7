#include "wire/endpoint.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "tests/names.h"
#include "tests/wire/deadline.h"
#include "wire/codec.h"
#include "wire/messages.pb.h"
#include "wire/status_query.h"

namespace allot::wire {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
using namespace std::chrono_literals;

TEST(Endpoint, AFreePortIsReportedAndCarriesFramesBothWays) {
  Server server({});
  EXPECT_THAT(server.endpoint(),
              AllOf(testing::StartsWith("tcp://127.0.0.1:"), testing::Not(HasSubstr("*"))));
  Client client(server.endpoint());
  client.send("question");
  const auto question = server.receive(kDeadline);
  ASSERT_TRUE(question.has_value());
  EXPECT_EQ(question->frame, "question");
  server.send(question->peer, std::string("answer\0.", 8));
  EXPECT_EQ(client.receive(kDeadline), std::string("answer\0.", 8));
}

TEST(Endpoint, AnswersReachThePeerThatAsked) {
  Server server({});
  Client first(server.endpoint()), second(server.endpoint());
  first.send("1");
  second.send("2");
  for (int i = 0; i < 2; ++i) {
    const auto message = server.receive(kDeadline);
    ASSERT_TRUE(message.has_value());
    server.send(message->peer, "to " + message->frame);
  }
  EXPECT_EQ(first.receive(kDeadline), "to 1");
  EXPECT_EQ(second.receive(kDeadline), "to 2");
}

TEST(Endpoint, NothingToReceiveIsNoError) {
  Server server({});
  EXPECT_FALSE(server.receive(0ms).has_value());
  Client client(server.endpoint());
  EXPECT_FALSE(client.receive(0ms).has_value());
}

TEST(Endpoint, AFrameForAPeerThatIsGoneIsDropped) {
  Server server({});
  server.send("nobody", "hello");
  EXPECT_FALSE(server.receive(0ms).has_value());
}

TEST(Endpoint, APortInUseIsNamedWithWhatToDo) {
  Server server({});
  EXPECT_THAT([&] { Server second({.bind = server.endpoint()}); },
              ThrowsMessage<NetworkError>(Names(server.endpoint(), "port")));
}

TEST(Endpoint, AddressesOtherMachinesReachAreRefusedUnlessInsecureIsSet) {
  EXPECT_THAT([] { Server server({.bind = "tcp://0.0.0.0:*"}); },
              ThrowsMessage<InvalidArgument>(Names("0.0.0.0", "--insecure")));
  EXPECT_THROW(Server({.bind = "tcp://127.evil.example:*"}), InvalidArgument);
  EXPECT_NO_THROW(Server({.bind = "tcp://0.0.0.0:*", .insecure = true}));
}

TEST(Endpoint, AddressesThatAreNotTcpWithAPortAreRefused) {
  for (const char* bind : {"", "127.0.0.1:80", "ipc:///x", "tcp://127.0.0.1", "tcp://127.0.0.1:x",
                           "tcp://127.0.0.1:70000", "tcp://:80", "tcp://127.0.0.1:"}) {
    EXPECT_THROW(Server({.bind = bind}), InvalidArgument) << bind;
    EXPECT_THROW(Client{bind}, InvalidArgument) << bind;
  }
  EXPECT_THROW(Client("tcp://127.0.0.1:*"), InvalidArgument);
}

TEST(StatusQuery, SilenceIsANetworkErrorNamingTheEndpoint) {
  Server silent({});
  EXPECT_THAT([&] { (void)query_status(silent.endpoint(), 20ms); },
              ThrowsMessage<NetworkError>(Names(silent.endpoint())));
}

}  // namespace
}  // namespace allot::wire
