#include "app/report/tensorboard_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/crc.hpp>
#include <fstream>
#include <optional>
#include <vector>

#include "app/report/run_summary.h"
#include "app/report/tensorboard.pb.h"
#include "base/error.h"
#include "base/file.h"

namespace allot::app {
namespace {

using tensorboard::Event;

constexpr size_t kHeadBytes = 12;
constexpr size_t kChecksumBytes = 4;
constexpr const char* kRewardTag = "reward";
constexpr const char* kEntropyTag = "policy/entropy";

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

// What a file holds: the last step of each kind, and where its last complete record ends.
struct Written {
  int64_t episodes = 0;
  int64_t last_version = -1;
  size_t bytes = 0;
};

// The record at the head of `rest`; nothing when the file ends before the record does.
std::optional<std::string_view> next_record(std::string_view rest, const std::string& place) {
  const auto damaged = [&](const char* part) {
    return CorruptFile(place + ": the checksum of the record's " + part +
                       " is wrong; delete the file and it will be written anew from the history");
  };
  if (rest.size() < kHeadBytes) return std::nullopt;
  if (read_little_endian<uint32_t>(rest.substr(8)) != masked_crc32c(rest.substr(0, 8)))
    throw damaged("length");
  const auto length = read_little_endian<uint64_t>(rest);
  if (rest.size() - kHeadBytes < kChecksumBytes || rest.size() - kHeadBytes - kChecksumBytes < length) {
    return std::nullopt;
  }
  const std::string_view bytes = rest.substr(kHeadBytes, length);
  if (read_little_endian<uint32_t>(rest.substr(kHeadBytes + length)) != masked_crc32c(bytes))
    throw damaged("content");
  return bytes;
}

Written scan(std::string_view file, const std::filesystem::path& path) {
  Written written;
  while (written.bytes < file.size()) {
    const std::string place = path.string() + ": byte " + std::to_string(written.bytes);
    const std::optional<std::string_view> record = next_record(file.substr(written.bytes), place);
    if (!record) break;
    Event event;
    if (!event.ParseFromArray(record->data(), static_cast<int>(record->size()))) {
      throw CorruptFile(place + ": the record is no event; delete the file and it will be written anew");
    }
    if (event.summary().value_size() > 0) {
      const std::string& tag = event.summary().value(0).tag();
      if (tag == kRewardTag) written.episodes = std::max(written.episodes, event.step());
      if (tag == kEntropyTag) written.last_version = std::max(written.last_version, event.step());
    }
    written.bytes += kHeadBytes + record->size() + kChecksumBytes;
  }
  return written;
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

// Learning speed over the window that ends at `index`; nothing while no time has passed.
std::optional<double> episodes_per_second(const std::vector<const aggregator::EpisodeRow*>& episodes,
                                          size_t index) {
  const size_t first = index < kRewardWindow ? 0 : index - kRewardWindow;
  const double seconds =
      seconds_since_epoch(episodes[index]->finished) - seconds_since_epoch(episodes[first]->finished);
  if (seconds <= 0) return std::nullopt;
  return static_cast<double>(index - first) / seconds;
}

void append_episodes(const aggregator::RunData& run, int64_t from, std::string* bytes) {
  const std::vector<const aggregator::EpisodeRow*> episodes = learning_episodes(run);
  std::vector<double> rewards;
  for (const aggregator::EpisodeRow* episode : episodes) rewards.push_back(episode->reward);
  const std::vector<double> means = moving_mean(rewards).mean;
  for (size_t i = static_cast<size_t>(from); i < episodes.size(); ++i) {
    const aggregator::EpisodeRow& episode = *episodes[i];
    Event event = event_at(episode.finished, static_cast<int64_t>(i) + 1);
    add_scalar(&event, kRewardTag, episode.reward);
    add_scalar(&event, "reward/mean", means[i]);
    add_scalar(&event, "policy/lag", static_cast<double>(episode.told_version - episode.asked_version));
    if (const auto speed = episodes_per_second(episodes, i))
      add_scalar(&event, "episodes_per_second", *speed);
    *bytes += tfrecord_frame(event.SerializeAsString());
  }
}

int64_t append_versions(const aggregator::RunData& run, int64_t after, std::string* bytes) {
  int64_t count = 0;
  for (const aggregator::VersionRow& version : run.versions) {
    if (version.version <= after) continue;
    Event event = event_at(version.at, version.version);
    add_scalar(&event, kEntropyTag, version.entropy);
    for (size_t layer = 0; layer < version.shares.size(); ++layer) {
      add_scalar(&event, fmt::format("share/layer_{:02}", layer), version.shares[layer]);
    }
    *bytes += tfrecord_frame(event.SerializeAsString());
    ++count;
  }
  return count;
}

void append_to_file(const std::filesystem::path& path, size_t keep, const std::string& bytes) {
  std::error_code fault;
  std::filesystem::create_directories(path.parent_path(), fault);
  if (!fault && std::filesystem::exists(path)) std::filesystem::resize_file(path, keep, fault);
  if (fault) throw StorageError(path.string() + ": cannot be written: " + fault.message());
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

EventsWritten update_tensorboard(const aggregator::RunData& run, const std::filesystem::path& directory) {
  // One fixed name per run: TensorBoard asks only that "tfevents" is in it.
  const std::filesystem::path path = directory / "events.out.tfevents.0.allot";
  Written written;
  if (std::filesystem::exists(path)) written = scan(read_file(path), path);

  std::string bytes;
  if (written.bytes == 0) {
    Event first = event_at(run.versions.empty() ? Timestamp{} : run.versions.front().at, 0);
    first.set_file_version("brain.Event:2");
    bytes += tfrecord_frame(first.SerializeAsString());
  }
  EventsWritten added;
  added.episodes = std::max<int64_t>(0, std::ssize(learning_episodes(run)) - written.episodes);
  append_episodes(run, written.episodes, &bytes);
  added.versions = append_versions(run, written.last_version, &bytes);
  append_to_file(path, written.bytes, bytes);
  return added;
}

}  // namespace allot::app
