// TensorBoard event files of a run: one file per run, brought up to date as often as wanted. A file is a
// sequence of TFRecord frames (length, masked CRC32C of the length, bytes, masked CRC32C of the bytes), each
// holding one Event.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "aggregator/run_data.h"

namespace allot::app {

// The frame of one record: 12 bytes of head, the bytes, 4 bytes of checksum; numbers little-endian.
std::string tfrecord_frame(std::string_view bytes);

// CRC32C (Castagnoli) of `bytes`, masked as TFRecord asks for: rotated right by 15 bits, plus 0xa282ead8.
uint32_t masked_crc32c(std::string_view bytes);

// What one call added.
struct EventsWritten {
  int64_t episodes = 0;
  int64_t versions = 0;
};

// Brings `directory`/events.out.tfevents.0.allot up to date with `run`, creating it when it is not there.
// Steps that the file already holds are left as they are, so a call after a restart goes on where the last
// one stopped; a record that a killed process left incomplete at the end is cut off first. Scalars, by
// episode in the order they were told (step 1, 2, …): reward, reward/mean (last 20), policy/lag (versions
// between ask and tell), episodes_per_second (last 20); by policy version (step = version): policy/entropy
// (nats), share/layer_00, … Throws CorruptFile when a complete record of the file is damaged (naming its
// byte), StorageError when writing fails.
EventsWritten update_tensorboard(const aggregator::RunData& run, const std::filesystem::path& directory);

}  // namespace allot::app
