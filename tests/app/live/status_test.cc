// The status as JSON, on a terminal and over HTTP, without processes.
#include <gmock/gmock.h>

#include <cmath>

#include "aggregator/learning_curve.h"
#include "app/live/live_server.h"
#include "app/report/run_summary.h"
#include "app/view/progress.h"
#include "app/view/status_screen.h"
#include "app/view/status_view.h"
#include "app/view/terminal_text.h"
#include "base/json.h"
#include "episode/reward_kind.h"
#include "episode/samples.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Le;
using testing::Not;
using testing::SizeIs;

static_assert(aggregator::LearningCurve::kWindow == kRewardWindow, "page and report show the same mean");

wire::Status example() {
  wire::Status status;
  status.set_run_id("example");
  status.set_model("tiny");
  status.set_task("gsm8k");
  status.set_stage("learn");
  status.set_episodes_done(25);
  status.set_episodes_wanted(100);
  status.set_lease_ms(60'000);
  status.set_eta_s(-1);
  for (int layer = 0; layer < 8; ++layer) {
    status.add_recommended(layer + 1);
    status.add_shares(0.125);
  }
  aggregator::LearningCurve curve;
  for (int i = 0; i < 25; ++i) curve.add(i / 25.0);
  curve.write(status.mutable_curve());
  return status;
}

void add_worker(wire::Status* status, const std::string& name, int64_t last_seen_ms = 10, int leases = 1) {
  auto& worker = *status->add_workers();
  worker.set_worker(name);
  worker.set_device("cpu");
  worker.set_last_seen_ms(last_seen_ms);
  worker.set_leases(leases);
}

// Columns of a terminal that a text of ASCII, blocks and the ellipsis takes.
size_t columns_of(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

TEST(StatusJson, HoldsEveryFieldOfTheStatusUnderItsName) {
  const json object = to_json(example(), {});
  for (int i = 0; i < wire::Status::descriptor()->field_count(); ++i) {
    EXPECT_TRUE(object.contains(wire::Status::descriptor()->field(i)->name()))
        << wire::Status::descriptor()->field(i)->name();
  }
  EXPECT_EQ(object["episodes_done"], 25);
  EXPECT_TRUE(object["eta_s"].is_null());
  EXPECT_THAT(object["recommended"], SizeIs(8));
  EXPECT_EQ(object["counters"]["granted"], 0);
  EXPECT_THAT(object["curve"]["mean"], SizeIs(25));
}

TEST(StatusJson, ListsSilentWorkersFirstAndNoMoreThanWanted) {
  wire::Status status = example();
  for (const char* name : {"d", "b", "a"}) add_worker(&status, name);
  add_worker(&status, "z", 60'001);
  const json object = to_json(status, {.most_workers = 3});
  ASSERT_THAT(object["workers"], SizeIs(3));
  EXPECT_EQ(object["workers"][0]["worker"], "z");
  EXPECT_EQ(object["workers"][0]["silent"], true);
  EXPECT_EQ(object["workers"][1]["worker"], "a");
  EXPECT_EQ(object["workers"][2]["worker"], "b");
  EXPECT_EQ(object["worker_counts"], json({{"all", 4}, {"busy", 3}, {"idle", 0}, {"silent", 1}}));
  EXPECT_THAT(to_json(status, {})["workers"], SizeIs(4));
}

TEST(StatusJson, ScoresCarryTheirIntervals) {
  wire::Status status = example();
  auto& score = *status.add_scores();
  score.set_label("uniform");
  score.set_wanted(100);
  EXPECT_TRUE(to_json(status, {})["scores"][0]["accuracy"].is_null()) << "before the first answer";
  score.set_answered(50);
  score.set_correct(40);
  const json made = to_json(status, {})["scores"][0];
  EXPECT_EQ(made["accuracy"], 0.8);
  EXPECT_NEAR(made["interval_95"][0].get<double>(), 0.6696, 1e-4);  // Wilson's interval of 40 in 50
  EXPECT_NEAR(made["interval_95"][1].get<double>(), 0.8876, 1e-4);
}

TEST(StatusJson, SaysHowRewardsOfTheRunsKindRead) {
  wire::Status status = example();
  for (const RewardKindRow& row : reward_kinds()) {
    status.set_reward_kind(std::string(row.name));
    const json rewards = to_json(status, {})["rewards"];
    EXPECT_EQ(rewards["name"], row.name);
    EXPECT_EQ(rewards["measure"], row.measure);
    EXPECT_EQ(rewards["unit"], row.unit);
    EXPECT_EQ(rewards["per_unit"], row.per_unit);
    EXPECT_EQ(rewards["decimals"], row.decimals);
    EXPECT_EQ(rewards["low"], row.low);
    EXPECT_EQ(rewards["high"].is_null(), std::isinf(row.high)) << "JSON has no infinity";
    EXPECT_EQ(rewards["higher_is_better"], row.higher_is_better);
  }
  status.clear_reward_kind();
  EXPECT_EQ(to_json(status, {})["rewards"]["name"], "answers") << "a run from before there were kinds";
  status.set_reward_kind("a kind of a later release");
  EXPECT_TRUE(to_json(status, {})["rewards"].is_null());
}

TEST(StatusJson, TheVerificationIsOnAnswersWhateverWasLearnedFrom) {
  wire::Status status = example();
  status.set_stage("verify");
  auto& score = *status.add_scores();
  score.set_label("learned");
  score.set_answered(4);
  score.set_correct(1);
  for (const char* kind : {"divergence", "a kind of a later release"}) {
    status.set_reward_kind(kind);
    const json object = to_json(status, {});
    EXPECT_EQ(object["scores"][0]["accuracy"], 0.25) << kind;
    EXPECT_EQ(object["scores"][0]["correct"], 1) << kind;
    EXPECT_EQ(object["verified"]["name"], "answers") << kind;
    EXPECT_THAT(format_status(status), HasSubstr("1/4 correct (25.0%)")) << kind;
    EXPECT_THAT(status_line(status), HasSubstr("learned 25.0%")) << kind;
    EXPECT_THAT(progress_line(status, 200), HasSubstr("learned 25.0%")) << kind;
  }
}

TEST(StatusJson, ARunWithoutARewardOfItsKindYetSaysNone) {
  wire::Status status = example();
  status.set_mean_reward_recent(0.5);
  EXPECT_THAT(progress_line(status, 200), HasSubstr("reward 50.0%"));
  EXPECT_THAT(format_status(status), HasSubstr("recent mean reward 50.0%"));
  // As in the first episodes of one that learns from divergences first.
  aggregator::LearningCurve().write(status.mutable_curve());
  EXPECT_THAT(progress_line(status, 200), Not(HasSubstr("reward")));
  EXPECT_THAT(format_status(status), HasSubstr("recent mean reward none"));
  status.clear_curve();  // an aggregator of the previous release
  EXPECT_THAT(progress_line(status, 200), HasSubstr("reward 50.0%"));
}

TEST(StatusJson, BytesThatAreNoUtf8DoNotBreakTheLine) {
  EXPECT_EQ(json_line(json("a\xff\n")), "\"a\uFFFD\\n\"");
}

TEST(StatusScreen, FitsEverySizeOfTerminal) {
  wire::Status status = example();
  for (int i = 0; i < 300; ++i) add_worker(&status, "pod-" + std::to_string(i) + std::string(90, 'x'));
  for (int layers : {8, 64}) {
    while (status.recommended_size() < layers) status.add_recommended(9);
    for (const size_t columns : {1, 20, 80, 200}) {
      for (const size_t rows : {1, 5, 24, 60, 400}) {
        const auto lines = status_screen(status, "a notice", {.columns = columns, .rows = rows});
        ASSERT_LE(lines.size(), rows);
        for (const std::string& line : lines) ASSERT_LE(columns_of(line), columns) << line;
      }
    }
  }
}

TEST(StatusScreen, NamesExactLayersWhereOthersHaveBars) {
  wire::Status status = example();
  status.set_recommended(1, kExactLayer);
  const auto lines = status_screen(status, "", {.columns = 100, .rows = 40});
  EXPECT_THAT(lines, ::testing::Contains(HasSubstr("layer   1  exact")));
}

TEST(StatusScreen, ShowsABarForEachLayerOrOneBlockWhereRowsAreFew) {
  const auto joined = [](const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    return text;
  };
  const std::string tall = joined(status_screen(example(), "", {.columns = 100, .rows = 40}));
  EXPECT_THAT(tall, AllOf(Names("learn", 25, 100, "25.0%"), HasSubstr("layer   0      1"),
                          HasSubstr("layer   7      8")));
  const std::string small = joined(status_screen(example(), "", {.columns = 100, .rows = 12}));
  EXPECT_THAT(small, AllOf(Not(HasSubstr("layer   0")), Names("layers", 0, 7, 8), HasSubstr("8 samples")));
  wire::Status of_rows = example();
  of_rows.set_unit("rows");
  EXPECT_THAT(joined(status_screen(of_rows, "", {.columns = 100, .rows = 12})), HasSubstr("at most 8 rows"));
}

TEST(StatusScreen, WhatAPeerSentCannotMoveTheCursor) {
  wire::Status status = example();
  add_worker(&status, "evil\x1b[2J\x07\r\nname\xe2\x80\xae");
  for (const std::string& line : status_screen(status, "", {.columns = 120, .rows = 50})) {
    EXPECT_EQ(line.find_first_of("\x1b\x07\r\n"), std::string::npos) << line;
    EXPECT_EQ(line.find("\u202e"), std::string::npos) << line;
  }
}

TEST(StatusScreen, PausedRunsSaySo) {
  wire::Status status = example();
  status.set_paused(true);
  EXPECT_THAT(status_line(status), Names("paused", "learn", 25, 100));
}

TEST(StatusScreen, WorkersThatWaitAfterFailuresComeFirstWithTheirLastFailure) {
  wire::Status status = example();
  add_worker(&status, "good");
  add_worker(&status, "silent", 600'000);
  add_worker(&status, "trouble");
  auto& trouble = *status.mutable_workers(2);
  trouble.set_quarantined_ms(61'000);
  trouble.set_last_failure("device lost");
  const std::vector<std::string> lines = status_screen(status, "", {.columns = 120, .rows = 40});
  EXPECT_THAT(lines, Contains(Names(3, 1, "failing")));
  const auto row =
      std::ranges::find_if(lines, [](const auto& line) { return line.starts_with("  trouble"); });
  ASSERT_NE(row, lines.end());
  EXPECT_THAT(*row, Names("1m 01s", "device lost"));
  EXPECT_LT(row, std::ranges::find_if(lines, [](const auto& line) { return line.starts_with("  silent"); }));
}

TEST(StatusScreen, CordonedWorkersSaySo) {
  wire::Status status = example();
  add_worker(&status, "at-work");
  add_worker(&status, "put-aside");
  status.mutable_workers(1)->set_cordoned(true);
  const std::vector<std::string> lines = status_screen(status, "", {.columns = 120, .rows = 40});
  const auto row =
      std::ranges::find_if(lines, [](const auto& line) { return line.starts_with("  put-aside"); });
  ASSERT_NE(row, lines.end());
  EXPECT_THAT(*row, Names("cordoned"));
  EXPECT_LT(row, std::ranges::find_if(lines, [](const auto& line) { return line.starts_with("  at-work"); }));
}

TEST(StatusScreen, ATargetIsInTheHeading) {
  wire::Status status = example();
  status.set_target_reward(0.65);
  EXPECT_THAT(status_line(status), Names("target", "65.0%"));
}

TEST(StatusScreen, SparklineSpansItsRangeAndAveragesWhatDoesNotFit) {
  EXPECT_EQ(sparkline({0, 1, 2, 3, 4, 5, 6, 7}, 0, 7, 80), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(sparkline({0, 0, 7, 7}, 0, 7, 2), "▁█");
  EXPECT_EQ(sparkline({3, 3}, 3, 3, 5), "▅▅") << "a range without width";
  EXPECT_EQ(sparkline({}, 0, 1, 5), "");
}

class LiveHandlers : public testing::Test {
 protected:
  aggregator::HttpResponse get(const std::string& path) {
    return live_handlers(live_, "/nowhere").at(path)();
  }
  void publish(const wire::Status& status) {
    auto snapshot = std::make_shared<aggregator::Snapshot>();
    snapshot->status = status;
    live_->publish(snapshot);
  }
  std::shared_ptr<aggregator::LiveState> live_ = std::make_shared<aggregator::LiveState>(
      "the history is being read", std::chrono::steady_clock::now() - 120s);
};

TEST_F(LiveHandlers, WhileTheHistoryIsReadTheProcessIsAliveAndNotReady) {
  EXPECT_EQ(get("/healthz").status, 200) << "a long history is no reason to be killed";
  EXPECT_EQ(get("/readyz").status, 503);
  EXPECT_EQ(get("/readyz").body, "the history is being read\n");
  EXPECT_EQ(get("/api/run").status, 503);
  EXPECT_EQ(get("/metrics").status, 200);
  EXPECT_EQ(get("/").status, 200);
}

TEST_F(LiveHandlers, ALoopThatGoesRoundNoMoreIsNotAlive) {
  publish(example());
  EXPECT_EQ(get("/readyz").status, 200);
  EXPECT_EQ(get("/healthz").status, 503) << "silent for 120 s";
  live_->went_round(std::chrono::steady_clock::now());
  EXPECT_EQ(get("/healthz").status, 200);
  live_->stopping();
  EXPECT_EQ(get("/readyz").body, "the aggregator is stopping\n");
  EXPECT_EQ(json::parse(get("/api/run").body)["ready"], false);
}

TEST_F(LiveHandlers, OfTenThousandWorkersTwoHundredAreListed) {
  wire::Status status = example();
  for (int i = 0; i < 10'000; ++i) add_worker(&status, "pod-" + std::to_string(i));
  publish(status);
  const aggregator::HttpResponse response = get("/api/run");
  EXPECT_THAT(response.body.size(), Le(80'000u));
  EXPECT_THAT(json::parse(response.body)["workers"], SizeIs(200));
  EXPECT_EQ(json::parse(response.body)["worker_counts"]["all"], 10'000);
}

TEST_F(LiveHandlers, ThePageRunsNothingButItsOwnScript) {
  const aggregator::HttpResponse first = get("/"), second = get("/");
  const std::string policy = first.headers.at("Content-Security-Policy");
  EXPECT_THAT(policy, AllOf(HasSubstr("default-src 'none'"), HasSubstr("frame-ancestors 'none'"),
                            Not(HasSubstr("unsafe"))));
  EXPECT_NE(policy, second.headers.at("Content-Security-Policy")) << "a nonce is used once";
  const size_t at = policy.find("nonce-") + 6;
  const std::string nonce = policy.substr(at, policy.find('\'', at) - at);
  EXPECT_THAT(nonce, SizeIs(32));
  EXPECT_THAT(first.body, AllOf(HasSubstr("<script nonce=\"" + nonce + "\">"),
                                HasSubstr("<style nonce=\"" + nonce + "\">")));
  for (const char* forbidden : {"http://", "https://", "innerHTML", "insertAdjacentHTML", "document.write",
                                "eval(", " onclick", " style=", "{script}", "{nonce}"}) {
    std::string body = first.body;
    const size_t svg = body.find("http://www.w3.org/2000/svg");  // a name, fetched by nobody
    if (svg != std::string::npos) body.erase(svg, 26);
    EXPECT_EQ(body.find(forbidden), std::string::npos) << forbidden;
  }
}

TEST_F(LiveHandlers, TheSavedPageHoldsItsFiguresWhateverNamesPeersChose) {
  aggregator::Snapshot snapshot{.status = example(), .figures = {}, .at = Timestamp(1000ms)};
  const std::string hostile = "</script><script>document.title='fooled'</script>{state}{head}{nonce}";
  add_worker(&snapshot.status, hostile);
  const std::string page = saved_page(snapshot);
  const std::string begin = "<script type=\"application/json\" id=\"state\">";
  const size_t at = page.find(begin) + begin.size();
  ASSERT_GT(at, begin.size());
  const json state = json::parse(page.substr(at, page.find("</script>", at) - at));
  EXPECT_EQ(state["workers"][0]["worker"], hostile);
  EXPECT_EQ(state["aggregator"], "none");
  EXPECT_EQ(state["at_ms"], 1000);
  EXPECT_THAT(page, AllOf(HasSubstr("http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "),
                          Not(HasSubstr("connect-src")), Not(HasSubstr("unsafe"))));
  EXPECT_NE(saved_page(snapshot), page) << "a nonce is used once";
}

}  // namespace
}  // namespace allot::app
