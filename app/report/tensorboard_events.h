// TensorBoard event files of a run: one file per run, which can be brought up to date any number of times. A
// file is a sequence of TFRecord frames (length, masked CRC32C of the length, bytes, masked CRC32C of the
// bytes), each holding one Event.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>
#include <string_view>

#include "aggregator/run_data.h"
#include "base/clock.h"

namespace allot::app {

// The frame of one record: 12 bytes of head, the bytes, 4 bytes of checksum; numbers little-endian.
std::string tfrecord_frame(std::string_view bytes);

// CRC32C (Castagnoli) of `bytes`, masked as TFRecord asks for: rotated right by 15 bits, plus 0xa282ead8.
uint32_t masked_crc32c(std::string_view bytes);

// What was added to the file.
struct EventsWritten {
  int64_t episodes = 0;
  int64_t versions = 0;
};

// Writes `directory`/events.out.tfevents.0.allot, creating it if necessary. Scalars by episode, in the order
// in which they were told (step 1, 2, …): reward, reward/mean (those of its kind among the last 20; both are
// called divergence where that was measured, in nats), policy/lag (versions between ask and
// tell), episodes_per_second (last 20); by policy version (step = version) what the learner describes:
// policy/entropy (nats), share/layer_00, … Memory does not grow with the run.
class TensorboardWriter {
 public:
  // Reads the existing file; a record that a killed process left incomplete at its end is cut off at the
  // first flush. `start` is the time of policy version 0, for the head of a new file. Throws CorruptFile when
  // a complete record of the file is damaged (naming its byte).
  TensorboardWriter(const std::filesystem::path& directory, Timestamp start);

  // Adds the next episode, starting with the run's first (episodes of the verification are not steps), or a
  // version. Steps that the file already has are skipped. Throw StorageError when writing fails.
  void add(const aggregator::EpisodeRow& episode);
  void add(const aggregator::VersionRow& version);
  // Writes the added events to the file. Throws StorageError.
  void flush();
  EventsWritten written() const { return written_; }

 private:
  // The data behind an episode's moving figures.
  struct Recent {
    double reward;
    Timestamp finished;
    RewardKind kind;
  };
  void append(const std::string& event);

  std::filesystem::path path_;
  size_t keep_ = 0;  // bytes of complete records in the file at the first flush
  bool flushed_ = false;
  std::string bytes_;  // not in the file yet
  int64_t episodes_in_file_ = 0;
  int64_t last_version_in_file_ = -1;
  int64_t episodes_ = 0;       // added
  std::deque<Recent> recent_;  // the last of them, a window and the one before it
  EventsWritten written_;
};

// Keeps the file of `directory` up to date with the history of a run. Throws as RunFollower
// and TensorboardWriter do.
class TensorboardFollower {
 public:
  TensorboardFollower(const std::filesystem::path& run_directory, const std::filesystem::path& directory);

  // Adds the rows of the history that the file lacks.
  void update();

 private:
  aggregator::RunFollower follower_;
  TensorboardWriter writer_;
};

}  // namespace allot::app
