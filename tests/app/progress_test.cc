#include "app/view/progress.h"
#include "tests/names.h"
#include "wire/messages.pb.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace allot::app {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

wire::Status learning(int64_t done) {
  wire::Status status;
  status.set_stage("learn");
  status.set_episodes_done(done);
  status.set_episodes_wanted(100);
  status.set_mean_reward_recent(0.8125);
  status.set_eta_s(75);
  for (const int samples : {33, 8, 7}) status.add_recommended(samples);
  return status;
}

wire::Status verifying() {
  wire::Status status = learning(100);
  status.set_stage("verify");
  for (const char* label : {"uniform", "learned"}) {
    auto* score = status.add_scores();
    score->set_label(label);
    score->set_wanted(50);
  }
  status.mutable_scores(0)->set_answered(40);
  status.mutable_scores(0)->set_correct(10);
  return status;
}

// What a view writes into memory.
class Written {
 public:
  explicit Written(bool terminal) : stream_(::open_memstream(&text_, &size_)), view_(stream_, terminal) {}
  ~Written() {
    view_.end();
    std::fclose(stream_);
    std::free(text_);
  }
  ProgressView& view() { return view_; }
  std::string text() {
    std::fflush(stream_);
    return {text_, size_};
  }
  int64_t lines() {
    const std::string all = text();
    return std::count(all.begin(), all.end(), '\n');
  }

 private:
  char* text_ = nullptr;
  size_t size_ = 0;
  std::FILE* stream_;
  ProgressView view_;
};

// Of UTF-8: every byte but those that continue a character.
int64_t characters(const std::string& text) {
  return std::ranges::count_if(text,
                               [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; });
}

TEST(Progress, LearningLineShowsBarEtaRewardAndSchedule) {
  EXPECT_EQ(progress_line(learning(50), 200),
            "learn |████████████            | 50/100  eta 1m 15s  reward 81.2%  schedule 33,8,7");
}

TEST(Progress, VerifyLineCountsQuestionsAndShowsScores) {
  const std::string line = progress_line(verifying(), 200);
  EXPECT_THAT(line, Names("40/100", "uniform 25.0%"));
  EXPECT_THAT(line, Not(Names("learned")));
}

TEST(Progress, BarGivesWayToTheNumbersOnANarrowTerminal) {
  const std::string line = progress_line(learning(50), 70);
  EXPECT_THAT(line, StartsWith("learn |██████      | 50/100"));
  EXPECT_THAT(line, EndsWith("schedule 33,8,7"));
  EXPECT_EQ(characters(line), 70);
}

TEST(Progress, LineIsCutAtTheTerminalsWidth) {
  const std::string line = progress_line(learning(50), 40);
  EXPECT_EQ(characters(line), 40);
  EXPECT_THAT(line, EndsWith("…"));
}

TEST(Progress, EmptyStatusHasALine) {
  EXPECT_THAT(progress_line(wire::Status(), 80), Names("0/0"));
}

TEST(Progress, PlainViewWritesALineAtEveryTwentieth) {
  Written written(false);
  for (int64_t done = 0; done <= 100; ++done) written.view().update(learning(done), Timestamp{});
  EXPECT_EQ(written.lines(), 21);
}

TEST(Progress, PlainViewWritesSlowProgressEveryTenSecondsAndNothingWhileItStands) {
  Written written(false);
  const Timestamp start{};
  written.view().update(learning(1), start);
  written.view().update(learning(2), start + std::chrono::seconds(9));
  EXPECT_EQ(written.lines(), 1);
  written.view().update(learning(2), start + std::chrono::seconds(10));
  EXPECT_EQ(written.lines(), 2);
  written.view().update(learning(2), start + std::chrono::seconds(60));
  EXPECT_EQ(written.lines(), 2);
}

TEST(Progress, PlainViewWritesALineWhenTheStageChanges) {
  Written written(false);
  written.view().update(learning(100), Timestamp{});
  written.view().update(verifying(), Timestamp{});
  EXPECT_EQ(written.lines(), 2);
}

TEST(Progress, TerminalViewRedrawsOneLineAndKeepsMessagesAboveIt) {
  Written written(true);
  written.view().update(learning(1), Timestamp{});
  written.view().update(learning(2), Timestamp{});
  EXPECT_EQ(written.lines(), 0);
  written.view().message("worker-1 started");
  EXPECT_THAT(written.text(), HasSubstr("\r\x1b[Kworker-1 started\nlearn |"));
  written.view().end();
  EXPECT_THAT(written.text(), EndsWith("\n"));
  EXPECT_EQ(written.lines(), 2);
}

}  // namespace
}  // namespace allot::app
