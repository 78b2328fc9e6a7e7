// What a key's holder may do, and that no holder speaks for the workers of another.
#include <gmock/gmock.h>

#include "tests/aggregator/core_driver.h"

#include "tests/names.h"

namespace allot::aggregator {
namespace {

class Roles : public testing::Test {
 protected:
  Roles()
      : history_(open_memory_history(&store_, now_)),
        core_(spec_, policy::make_policy(policy_config(spec_)), *history_, now_) {
    (void)core_.take();
  }

  // The one reply to a message over the connection `peer` of `user`.
  wire::Envelope send(const std::string& peer, Rights rights, const std::string& user,
                      wire::Envelope message) {
    message.set_number(1);
    core_.receive({peer, rights, user}, wire::encode(std::move(message)), now_);
    Outputs outputs = core_.take();
    EXPECT_EQ(outputs.replies.size(), 1u);
    return outputs.replies.empty() ? wire::Envelope() : outputs.replies[0].envelope;
  }

  wire::Envelope hello(const std::string& worker) {
    wire::Envelope message;
    *message.mutable_hello() = example_hello(spec_, worker);
    return message;
  }

  wire::Envelope request() {
    wire::Envelope message;
    message.mutable_lease_request()->set_count(1);
    return message;
  }

  wire::RunSpec spec_ = example_spec();
  Timestamp now_{Duration{1'700'000'000'000}};
  MemoryStore store_;
  std::unique_ptr<History> history_;
  Core core_;
};

TEST_F(Roles, AViewerMayAskForTheStatusAndNothingElse) {
  wire::Envelope status;
  status.mutable_status_request();
  EXPECT_TRUE(send("v", Rights::kViewer, "wall", status).has_status());
  wire::Envelope client;
  client.mutable_hello()->set_client(true);
  EXPECT_TRUE(send("v", Rights::kViewer, "wall", client).has_welcome());
  wire::Envelope control;
  control.mutable_control()->set_action(wire::Control::ACTION_PAUSE);
  control.mutable_control()->set_by("wall");
  for (const wire::Envelope& message : {hello("w"), request(), control}) {
    const wire::Envelope answer = send("v", Rights::kViewer, "wall", message);
    EXPECT_EQ(answer.refused().reason(), wire::Refused::REASON_NOT_ALLOWED) << answer.DebugString();
    EXPECT_THAT(answer.refused().message(), Names("wall"));
  }
  EXPECT_FALSE(core_.status(now_).paused());
}

TEST_F(Roles, ResultOfAnotherHoldersLeaseIsRejectedThoughTheWorkerTakesItsName) {
  ASSERT_TRUE(send("1", Rights::kWorker, "ann", hello("w")).has_welcome());
  const wire::Envelope grant = send("1", Rights::kWorker, "ann", request());
  ASSERT_EQ(grant.grant().leases_size(), 1);
  ASSERT_TRUE(send("2", Rights::kWorker, "bob", hello("w")).has_welcome());
  wire::Envelope stolen;
  *stolen.mutable_result() = result_of(grant.grant().leases(0), 4);
  EXPECT_EQ(send("2", Rights::kWorker, "bob", stolen).ack().verdict(), wire::Ack::VERDICT_REJECTED);
  EXPECT_EQ(send("1", Rights::kWorker, "ann", stolen).ack().verdict(), wire::Ack::VERDICT_ACCEPTED);
  EXPECT_EQ(core_.status(now_).workers(0).worker(), "ann/w");
}

TEST_F(Roles, HistoryNotesTheHolderOfTheKeyThatControlled) {
  wire::Envelope control;
  control.mutable_control()->set_action(wire::Control::ACTION_PAUSE);
  control.mutable_control()->set_by("the boss");
  EXPECT_FALSE(send("1", Rights::kWorker, "ann", control).control_reply().done());
  EXPECT_TRUE(send("1", Rights::kOperator, "ann", control).control_reply().done());
  ASSERT_EQ(core_.status(now_).steering_size(), 1);
  EXPECT_EQ(core_.status(now_).steering(0).by(), "ann/the boss");
}

}  // namespace
}  // namespace allot::aggregator
