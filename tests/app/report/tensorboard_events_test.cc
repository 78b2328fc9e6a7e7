#include "app/report/tensorboard_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <vector>

#include "app/report/run_summary.h"
#include "app/report/tensorboard.pb.h"
#include "base/error.h"
#include "base/file.h"
#include "tests/app/report/example_run.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using ::testing::ElementsAre;

// Written by the package tensorboard 2.21 (RecordWriter over its own Event protos): the version record,
// episode 1 and version 0 of golden_run().
constexpr const char* kGolden =
    "1800000000000000a37f4b220900000000de39da411a0d627261696e2e4576656e743a32a9c8c2b4"
    "4300000000000000b18525a00900002000de39da4110012a360a0d0a06726577617264150000803e"
    "0a120a0b7265776172642f6d65616e150000803e0a110a0a706f6c6963792f6c61671500000000d5"
    "1fd4fe5000000000000000940f9b820900000000de39da412a450a150a0e706f6c6963792f656e74"
    "726f7079150000003f0a150a0e73686172652f6c617965725f3030150000403f0a150a0e73686172"
    "652f6c617965725f3031150000803e8dd345a3";

// What a run's history hands over.
struct Rows {
  std::vector<aggregator::EpisodeRow> episodes;
  std::vector<aggregator::VersionRow> versions;
};

aggregator::EpisodeRow episode_row(const aggregator::LearnedEpisode& learned) {
  aggregator::EpisodeRow row;
  row.stage = "learn";
  row.reward = learned.reward;
  row.finished = learned.finished;
  return row;
}

Rows golden_run() {
  constexpr Timestamp kStart{std::chrono::milliseconds(1'760'000'000'000)};
  return {.episodes = {episode_row({.finished = kStart + std::chrono::milliseconds(500), .reward = 0.25})},
          .versions = {{.version = 0,
                        .at = kStart,
                        .described = {.per_layer = {0.75, 0.25}, .scalars = {{"entropy", 0.5}}},
                        .recommended = {3, 1}}}};
}

Rows rows_of(const aggregator::RunData& run) {
  Rows rows{.episodes = {}, .versions = run.versions};
  for (const auto& learned : run.learned) rows.episodes.push_back(episode_row(learned));
  return rows;
}

EventsWritten write_events(const Rows& rows, const std::filesystem::path& directory) {
  TensorboardWriter writer(directory, rows.versions.empty() ? Timestamp{} : rows.versions.front().at);
  for (const auto& episode : rows.episodes) writer.add(episode);
  for (const auto& version : rows.versions) writer.add(version);
  writer.flush();
  return writer.written();
}

std::string hex(const std::string& bytes) {
  std::string text;
  for (const unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

// A new empty folder for each test.
class TensorboardEvents : public ::testing::Test {
 protected:
  TensorboardEvents()
      : directory_(std::filesystem::path(::testing::TempDir()) / "tensorboard_events_test" /
                   ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(directory_);
  }

  std::filesystem::path file() const { return directory_ / "events.out.tfevents.0.allot"; }

  // What the file says of each tag, in its order; the frames are trusted.
  struct Scalars {
    std::vector<int64_t> steps;
    std::vector<float> values;
  };
  std::map<std::string, Scalars> scalars() const {
    const std::string bytes = read_file(file());
    std::map<std::string, Scalars> found;
    for (size_t at = 0; at < bytes.size();) {
      const auto length =
          static_cast<unsigned char>(bytes[at]) + 256u * static_cast<unsigned char>(bytes[at + 1]);
      tensorboard::Event event;
      EXPECT_TRUE(event.ParseFromString(bytes.substr(at + 12, length)));
      for (const auto& value : event.summary().value()) {
        EXPECT_TRUE(value.has_simple_value()) << value.tag() << " at step " << event.step();
        found[value.tag()].steps.push_back(event.step());
        found[value.tag()].values.push_back(value.simple_value());
      }
      at += 16 + length;
    }
    return found;
  }
  std::map<std::string, std::vector<int64_t>> steps() const {
    std::map<std::string, std::vector<int64_t>> found;
    for (const auto& [tag, one] : scalars()) found[tag] = one.steps;
    return found;
  }

  std::filesystem::path directory_;
};

TEST(MaskedCrc32c, EqualsKnownValues) {
  // CRC32C of "123456789" is 0xe3069283 (the polynomial's check value), of 32 zero bytes 0x8a9136aa (RFC
  // 3720, B.4).
  EXPECT_EQ(masked_crc32c("123456789"), 0xc78ab0e5u);
  EXPECT_EQ(masked_crc32c(std::string(32, '\0')), 0x0fd7fffau);
  EXPECT_EQ(masked_crc32c(""), 0xa282ead8u);
}

TEST_F(TensorboardEvents, BytesEqualThoseOfTensorBoardsOwnWriter) {
  const EventsWritten written = write_events(golden_run(), directory_);
  EXPECT_EQ(written.episodes, 1);
  EXPECT_EQ(written.versions, 1);
  EXPECT_EQ(hex(read_file(file())), kGolden);
}

TEST_F(TensorboardEvents, EveryEpisodeAndVersionHasItsScalars) {
  write_events(rows_of(example_run({.layers = 3, .total = 24, .episodes = 40})), directory_);
  const auto found = steps();
  EXPECT_EQ(found.at("reward").size(), 40u);
  EXPECT_EQ(found.at("reward").front(), 1);
  EXPECT_EQ(found.at("reward").back(), 40);
  EXPECT_EQ(found.at("reward/mean"), found.at("reward"));
  EXPECT_EQ(found.at("policy/lag"), found.at("reward"));
  EXPECT_EQ(found.at("episodes_per_second").size(), 39u);  // none at the first: no time has passed
  EXPECT_THAT(found.at("policy/entropy"), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(found.at("share/layer_02"), found.at("policy/entropy"));
}

TEST_F(TensorboardEvents, LaterCallsAppendOnlyWhatIsNew) {
  const Rows whole = rows_of(example_run({.episodes = 40}));
  Rows half = whole;
  half.episodes.resize(17);
  half.versions.resize(2);
  write_events(half, directory_);
  const std::string before = read_file(file());

  EventsWritten written = write_events(half, directory_);
  EXPECT_EQ(written.episodes + written.versions, 0);
  EXPECT_EQ(read_file(file()), before);

  written = write_events(whole, directory_);
  EXPECT_EQ(written.episodes, 23);
  EXPECT_EQ(written.versions, 3);
  EXPECT_TRUE(read_file(file()).starts_with(before));
  EXPECT_EQ(steps().at("reward").size(), 40u);
  EXPECT_THAT(steps().at("policy/entropy"), ElementsAre(0, 1, 2, 3, 4));
}

TEST_F(TensorboardEvents, RecordLeftIncompleteByAKillIsCutOffWhereverItEnded) {
  const Rows run = golden_run();
  write_events(run, directory_);
  const std::string whole = read_file(file());
  for (size_t length = 0; length < whole.size(); ++length) {
    write_file_atomically(file(), whole.substr(0, length));
    write_events(run, directory_);
    // Where the cut falls between episode and version the order may not change either: both are written in
    // that order.
    ASSERT_EQ(read_file(file()), whole) << "cut after " << length << " bytes";
  }
}

TEST_F(TensorboardEvents, DamagedRecordIsNamedWithItsByte) {
  write_events(golden_run(), directory_);
  const std::string whole = read_file(file());
  const auto fault_after_flip = [&](size_t at) -> std::string {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    write_file_atomically(file(), damaged);
    try {
      write_events(golden_run(), directory_);
    } catch (const CorruptFile& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(fault_after_flip(3), Names("byte 0", "length"));
  EXPECT_THAT(fault_after_flip(20), Names("byte 0", "content"));
  EXPECT_THAT(fault_after_flip(60), Names("byte 40", "content"));
}

TEST_F(TensorboardEvents, AFileWrittenInPiecesByTwoProcessesIsTheOneWrittenAtOnce) {
  Rows run = rows_of(example_run({.layers = 3, .total = 24, .episodes = 90}));
  run.versions.clear();
  write_events(run, directory_);
  const std::string at_once = read_file(file());
  std::filesystem::remove(file());
  const auto write_until = [&](TensorboardWriter* writer, size_t from, size_t until) {
    for (size_t i = from; i < until; ++i) writer->add(run.episodes[i]);
    writer->flush();
  };
  {
    TensorboardWriter writer(directory_, Timestamp{});
    write_until(&writer, 0, 19);
    write_until(&writer, 19, 43);
    EXPECT_EQ(writer.written().episodes, 43);
  }
  TensorboardWriter writer(directory_, Timestamp{});
  write_until(&writer, 0, 60);
  write_until(&writer, 60, 90);
  EXPECT_EQ(writer.written().episodes, 47);
  EXPECT_EQ(read_file(file()), at_once);
}

TEST_F(TensorboardEvents, MeanAndSpeedAreThoseOfTheLastTwentyEpisodes) {
  const aggregator::RunData run = example_run({.layers = 3, .total = 24, .episodes = 90});
  write_events(rows_of(run), directory_);
  const std::vector<float> means_written = scalars().at("reward/mean").values;
  ASSERT_EQ(means_written.size(), 90u);
  for (size_t i = 0; i < 90; ++i) {
    const double mean = moving_mean(std::span(run.learned).first(i + 1), RewardKind::kAnswers).mean;
    EXPECT_EQ(means_written[i], static_cast<float>(mean)) << i;
  }
  const std::chrono::duration<double> twenty = run.learned[89].finished - run.learned[69].finished;
  EXPECT_FLOAT_EQ(scalars().at("episodes_per_second").values.back(), static_cast<float>(20 / twenty.count()));
}

TEST_F(TensorboardEvents, DivergencesHaveTheirOwnNameAndMean) {
  const aggregator::RunData example = example_run({.layers = 3, .total = 24, .episodes = 30});
  Rows run = rows_of(example);
  run.versions.clear();
  for (size_t i = 0; i < 15; ++i) {
    run.episodes[i].kind = RewardKind::kDivergence;
    run.episodes[i].reward = 3;
  }
  write_events(run, directory_);
  EXPECT_EQ(write_events(run, directory_).episodes, 0) << "all are known to be there";
  const std::map<std::string, Scalars> found = scalars();
  EXPECT_THAT(found.at("divergence").values, testing::AllOf(testing::SizeIs(15), testing::Each(3)));
  EXPECT_THAT(found.at("divergence/mean").values, testing::Each(3));
  ASSERT_THAT(found.at("reward/mean").values, testing::SizeIs(15));
  EXPECT_EQ(found.at("reward").steps.front(), 16);
  const auto answers = std::span(example.learned).subspan(15);
  EXPECT_EQ(found.at("reward/mean").values.back(),
            static_cast<float>(moving_mean(answers, RewardKind::kAnswers).mean));
}

TEST_F(TensorboardEvents, VerificationEpisodesAreNoLearningSteps) {
  Rows run = golden_run();
  run.episodes.push_back(run.episodes.front());
  run.episodes.back().stage = "verify";
  EXPECT_EQ(write_events(run, directory_).episodes, 1);
}

TEST_F(TensorboardEvents, FolderThatCannotBeWrittenIsNamed) {
  write_file_atomically(directory_, "a file where the folder should be");
  try {
    write_events(golden_run(), directory_);
    FAIL() << "a file was taken for a folder";
  } catch (const StorageError& error) {
    EXPECT_THAT(error.what(), Names(directory_));
  }
}

}  // namespace
}  // namespace allot::app
