#include "app/report/tensorboard_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/crc.hpp>
#include <fstream>

#include "app/report/run_summary.h"
#include "app/report/tensorboard.pb.h"
#include "base/error.h"
#include "base/file.h"

namespace allot::app {
namespace {

using tensorboard::Event;

constexpr size_t kHeadBytes = 12;
constexpr size_t kChecksumBytes = 4;
// Bytes of events that may wait to be written.
constexpr size_t kMostWaiting = size_t{1} << 20;

bool is_reward_tag(const std::string& tag) {
  return std::ranges::find(reward_kinds(), tag, &RewardKindRow::series) != reward_kinds().end();
}

template <class Integer>
void append_little_endian(Integer number, std::string* bytes) {
  for (size_t i = 0; i < sizeof(Integer); ++i) bytes->push_back(static_cast<char>(number >> (8 * i)));
}

template <class Integer>
Integer read_little_endian(std::string_view bytes) {
  Integer number = 0;
  for (size_t i = 0; i < sizeof(Integer); ++i)
    number |= Integer{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return number;
}

// What a file already contains: the last step of each kind, and where its last complete record ends.
struct Held {
  int64_t episodes = 0;
  int64_t last_version = -1;
  size_t bytes = 0;
};

// Reads exactly `size` bytes; false when the file ends before.
bool read_bytes(std::ifstream* file, size_t size, std::string* bytes) {
  bytes->resize(size);
  file->read(bytes->data(), static_cast<std::streamsize>(size));
  return static_cast<size_t>(file->gcount()) == size;
}

// Reads the next record, which begins at byte `at`, into `bytes`; false when the file of `file_bytes` ends
// before the record does.
bool next_record(std::ifstream* file, size_t file_bytes, size_t at, const std::string& place,
                 std::string* bytes) {
  const auto damaged = [&](const char* part) {
    return CorruptFile(place + ": the checksum of the record's " + part +
                       " is wrong; delete the file and it will be written again from the history");
  };
  if (!read_bytes(file, kHeadBytes, bytes)) return false;
  const std::string_view head = *bytes;
  if (read_little_endian<uint32_t>(head.substr(8)) != masked_crc32c(head.substr(0, 8)))
    throw damaged("length");
  const auto length = read_little_endian<uint64_t>(head);
  const size_t rest = file_bytes - at - kHeadBytes;
  if (rest < kChecksumBytes || rest - kChecksumBytes < length) return false;
  if (!read_bytes(file, length + kChecksumBytes, bytes)) return false;
  const uint32_t checksum = read_little_endian<uint32_t>(std::string_view(*bytes).substr(length));
  bytes->resize(length);
  if (checksum != masked_crc32c(*bytes)) throw damaged("content");
  return true;
}

Held scan(const std::filesystem::path& path) {
  Held held;
  std::error_code absent;
  const size_t file_bytes = std::filesystem::file_size(path, absent);
  if (absent) return held;
  std::ifstream file(path, std::ios::binary);
  std::string record;
  while (held.bytes < file_bytes) {
    const std::string place = path.string() + ": byte " + std::to_string(held.bytes);
    if (!next_record(&file, file_bytes, held.bytes, place, &record)) break;
    Event event;
    if (!event.ParseFromString(record)) {
      throw CorruptFile(place + ": the record is no event; delete the file and it will be written again");
    }
    if (event.summary().value_size() > 0) {
      const std::string& tag = event.summary().value(0).tag();
      // A tag that is not an episode's is a version's, which begins with whatever its
      // learner describes first.
      int64_t& last = is_reward_tag(tag) ? held.episodes : held.last_version;
      last = std::max<int64_t>(last, event.step());
    }
    held.bytes += kHeadBytes + record.size() + kChecksumBytes;
  }
  return held;
}

double seconds_since_epoch(Timestamp time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

Event event_at(Timestamp time, int64_t step) {
  Event event;
  event.set_wall_time(seconds_since_epoch(time));
  event.set_step(step);
  return event;
}

void add_scalar(Event* event, const std::string& tag, double value) {
  tensorboard::Summary::Value* scalar = event->mutable_summary()->add_value();
  scalar->set_tag(tag);
  scalar->set_simple_value(static_cast<float>(value));
}

// Cuts the file after `keep` bytes, if it is longer, and makes its folder.
void prepare_file(const std::filesystem::path& path, size_t keep) {
  std::error_code fault;
  std::filesystem::create_directories(path.parent_path(), fault);
  if (!fault && std::filesystem::exists(path)) std::filesystem::resize_file(path, keep, fault);
  if (fault) throw StorageError(path.string() + ": cannot be written: " + fault.message());
}

void append_to_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::app);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) throw StorageError(path.string() + ": cannot append " + std::to_string(bytes.size()) + " bytes");
}

}  // namespace

uint32_t masked_crc32c(std::string_view bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc32c;
  crc32c.process_bytes(bytes.data(), bytes.size());
  const uint32_t crc = crc32c.checksum();
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

std::string tfrecord_frame(std::string_view bytes) {
  std::string frame;
  append_little_endian(uint64_t{bytes.size()}, &frame);
  append_little_endian(masked_crc32c(frame), &frame);
  frame += bytes;
  append_little_endian(masked_crc32c(bytes), &frame);
  return frame;
}

// One fixed name per run: TensorBoard asks only that "tfevents" is in it.
TensorboardWriter::TensorboardWriter(const std::filesystem::path& directory, Timestamp start)
    : path_(directory / "events.out.tfevents.0.allot") {
  const Held held = scan(path_);
  keep_ = held.bytes;
  episodes_in_file_ = held.episodes;
  last_version_in_file_ = held.last_version;
  if (keep_ > 0) return;
  Event head = event_at(start, 0);
  head.set_file_version("brain.Event:2");
  append(head.SerializeAsString());
}

void TensorboardWriter::append(const std::string& event) {
  bytes_ += tfrecord_frame(event);
  if (bytes_.size() >= kMostWaiting) flush();
}

void TensorboardWriter::flush() {
  if (!flushed_) prepare_file(path_, keep_);
  flushed_ = true;
  append_to_file(path_, bytes_);
  bytes_.clear();
}

void TensorboardWriter::add(const aggregator::EpisodeRow& episode) {
  if (episode.stage != name(aggregator::Stage::kLearn)) return;
  recent_.push_back({episode.reward, episode.finished, episode.kind});
  if (recent_.size() > kRewardWindow + 1) recent_.pop_front();
  if (++episodes_ <= episodes_in_file_) return;
  Event event = event_at(episode.finished, episodes_);
  const std::string tag(row_of(episode.kind).series);
  add_scalar(&event, tag, episode.reward);
  double sum = 0;
  int64_t count = 0;
  for (size_t i = recent_.size() > kRewardWindow ? 1 : 0; i < recent_.size(); ++i) {
    if (recent_[i].kind != episode.kind) continue;
    sum += recent_[i].reward;
    ++count;
  }
  add_scalar(&event, tag + "/mean", sum / static_cast<double>(count));
  add_scalar(&event, "policy/lag", static_cast<double>(episode.told_version - episode.asked_version));
  const double seconds =
      seconds_since_epoch(episode.finished) - seconds_since_epoch(recent_.front().finished);
  // No rate while no time has passed.
  if (seconds > 0)
    add_scalar(&event, "episodes_per_second", static_cast<double>(recent_.size() - 1) / seconds);
  append(event.SerializeAsString());
  ++written_.episodes;
}

void TensorboardWriter::add(const aggregator::VersionRow& version) {
  if (version.version <= last_version_in_file_) return;
  Event event = event_at(version.at, version.version);
  for (const auto& scalar : version.described.scalars) {
    add_scalar(&event, "policy/" + scalar.name, scalar.value);
  }
  for (size_t layer = 0; layer < version.described.per_layer.size(); ++layer) {
    add_scalar(&event, fmt::format("{}/layer_{:02}", version.described.layer_name, layer),
               version.described.per_layer[layer]);
  }
  if (event.summary().value_size() == 0) return;  // the learner describes nothing
  append(event.SerializeAsString());
  ++written_.versions;
}

TensorboardFollower::TensorboardFollower(const std::filesystem::path& run_directory,
                                         const std::filesystem::path& directory)
    : follower_(run_directory), writer_(directory, follower_.started()) {}

void TensorboardFollower::update() {
  follower_.new_episodes([this](const aggregator::EpisodeRow& episode) { writer_.add(episode); });
  follower_.new_versions([this](const aggregator::VersionRow& version) { writer_.add(version); });
  writer_.flush();
}

}  // namespace allot::app
