#include "policy/session.h"

#include <gmock/gmock.h>

#include <set>

#include "tests/names.h"

namespace allot::policy {
namespace {

using nlohmann::json;

constexpr const char* kInit =
    R"({"op":"init","layers":4,"samples":32,"batch":3,"pool":50,"budget":100,"seed":7,"checkpoints":[10,20]})";

json answer(Session& session, const json& request) {
  return json::parse(session.answer(request.dump()));
}

TEST(Session, AnswersInitAskTellRecommendAndStop) {
  Session session("pairs", 0);
  EXPECT_EQ(json::parse(session.answer(kInit)), (json{{"ok", true}, {"name", "pairs"}}));
  const json asked = answer(session, {{"op", "ask"}, {"max", 4}});
  ASSERT_EQ(asked.at("episodes").size(), 4u);
  json results = json::array();
  for (const json& episode : asked.at("episodes")) {
    EXPECT_EQ(episode.at("schedule").size(), 4u);
    const auto questions = episode.at("questions").get<std::vector<uint32_t>>();
    EXPECT_EQ(std::set<uint32_t>(questions.begin(), questions.end()).size(), 3u);
    EXPECT_LT(std::ranges::max(questions), 50u);
    results.push_back({{"id", episode.at("id")}, {"correct", {1, 0, 1}}, {"reward", 2.0 / 3}});
  }
  EXPECT_EQ(asked["episodes"][0]["questions"], asked["episodes"][1]["questions"]) << "a pair has the same";
  EXPECT_NE(asked["episodes"][0]["questions"], asked["episodes"][2]["questions"]);
  EXPECT_EQ(answer(session, {{"op", "tell"}, {"results", results}}), (json{{"ok", true}}));
  EXPECT_EQ(answer(session, {{"op", "recommend"}}).at("schedule").size(), 4u);
  EXPECT_FALSE(session.stopped());
  EXPECT_EQ(answer(session, {{"op", "stop"}}), (json{{"ok", true}}));
  EXPECT_TRUE(session.stopped());
}

TEST(Session, TakesResultsByScheduleWithoutAnId) {
  Session by_id("pairs", 0), by_schedule("pairs", 0);
  by_id.answer(kInit);
  by_schedule.answer(kInit);
  for (int round = 0; round < 10; ++round) {
    json with_id = json::array(), with_schedule = json::array();
    answer(by_schedule, {{"op", "ask"}, {"max", 8}});
    const json asked = answer(by_id, {{"op", "ask"}, {"max", 8}});
    for (const json& episode : asked.at("episodes")) {
      const double reward = episode["schedule"][0].get<double>() / 32;
      with_id.push_back({{"id", episode["id"]}, {"reward", reward}});
      with_schedule.push_back(
          {{"schedule", episode["schedule"]}, {"questions", episode["questions"]}, {"reward", reward}});
    }
    EXPECT_EQ(answer(by_id, {{"op", "tell"}, {"results", with_id}}), (json{{"ok", true}}));
    EXPECT_EQ(answer(by_schedule, {{"op", "tell"}, {"results", with_schedule}}), (json{{"ok", true}}));
  }
  const json recommended = answer(by_id, {{"op", "recommend"}});
  EXPECT_EQ(answer(by_schedule, {{"op", "recommend"}}), recommended);
  EXPECT_GT(recommended.at("schedule").at(0).get<int>(), 8);
}

TEST(Session, RefusesBadRequestsNamingWhatIsWrong) {
  Session session("pairs", 0);
  const auto error = [&](const char* request) {
    const json reply = json::parse(session.answer(request));
    EXPECT_EQ(reply.at("ok"), false) << request;
    return reply.at("error").get<std::string>();
  };
  EXPECT_THAT(error("not JSON"), ::testing::HasSubstr("no JSON object"));
  EXPECT_THAT(error("[1]"), ::testing::HasSubstr("no JSON object"));
  EXPECT_THAT(error(R"({"op":"sing"})"), Names("sing", "init", "recommend"));
  EXPECT_THAT(error(R"({"op":"ask","max":1})"), ::testing::HasSubstr("send init first"));
  EXPECT_THAT(error(R"({"op":"init","layers":0,"samples":8})"), Names("layers", 0));
  EXPECT_THAT(error(R"({"op":"init","layers":4})"), Names("samples", "missing"));
  EXPECT_THAT(error(R"({"op":"init","layers":4,"samples":2,"floor":1})"), Names("total", 2, 4));
  EXPECT_THAT(error(R"({"op":"init","layers":4,"samples":32,"batch":9,"pool":8})"),
              Names("pool", 8, "batch", 9));
  EXPECT_THAT(error(R"({"op":"init","layers":4,"samples":32,"checkpoints":7})"), Names("checkpoints", 7));
  session.answer(kInit);
  EXPECT_THAT(error(R"({"op":"ask","max":0})"), Names("max", 0));
  EXPECT_THAT(error(R"({"op":"tell"})"), Names("results"));
  EXPECT_THAT(error(R"({"op":"tell","results":[{"id":0,"reward":1}]})"), Names("id", 0));
  EXPECT_THAT(error(R"({"op":"tell","results":[{"schedule":[1,2,3,4],"reward":1}]})"),
              Names("1,2,3,4", "never asked"));
  session.answer(R"({"op":"ask","max":2})");
  EXPECT_THAT(error(R"({"op":"tell","results":[{"id":0}]})"), Names("correct", "reward"));
  EXPECT_THAT(error(R"({"op":"tell","results":[{"id":0,"correct":[1,0]}]})"), Names(2, 3));
  EXPECT_THAT(error(R"({"op":"tell","results":[{"id":0,"correct":[1,0,7]}]})"), Names("correct", 7));
  EXPECT_THAT(error(R"({"op":"tell","results":[{"id":0,"reward":"high"}]})"), Names("reward", "high"));
}

TEST(Session, AWrongResultAmongGoodOnesChangesNothing) {
  Session session("reinforce", 0), other("reinforce", 0);
  for (Session* one : {&session, &other}) {
    one->answer(kInit);
    one->answer(R"({"op":"ask","max":8})");
  }
  session.answer(R"({"op":"tell","results":[{"id":0,"reward":1},{"id":99,"reward":1}]})");
  const std::string rest = R"({"op":"tell","results":[{"id":0,"reward":0},{"id":1,"reward":1}]})";
  session.answer(rest);
  other.answer(rest);
  for (int round = 0; round < 5; ++round) {
    EXPECT_EQ(session.answer(R"({"op":"ask","max":3})"), other.answer(R"({"op":"ask","max":3})"));
  }
}

TEST(Session, InitStartsAnew) {
  Session session("auto", 0);
  session.answer(kInit);
  const std::string first = session.answer(R"({"op":"ask","max":8})");
  session.answer(R"({"op":"tell","results":[{"id":0,"reward":1},{"id":1,"reward":0}]})");
  session.answer(kInit);
  EXPECT_EQ(session.answer(R"({"op":"ask","max":8})"), first);
}

}  // namespace
}  // namespace allot::policy
