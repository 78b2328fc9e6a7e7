// The high-water mark of a history: how far it was when the last answer left, in a file of its own. The
// history is safe against a crash; the mark is there for what a crash cannot do, a write-ahead log that is
// lost, cut or damaged, or a database that is replaced by an older copy. SQLite then gives an earlier state
// and does not know.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/sha256.h"

namespace allot::aggregator {

struct HistoryMark {
  int64_t epoch = 0;
  int64_t seq = 0;        // of the last record
  int64_t episodes = 0;   // outcomes among the records
  Sha256Digest digest{};  // the link of the chain that ends with `seq`
  bool operator==(const HistoryMark&) const = default;
};

// history.mark beside history.sqlite.
std::filesystem::path mark_path(const std::filesystem::path& history);

// The mark beside `history`; nothing when there is none, or when it cannot be read, which is logged: a mark
// is not synced, so a power cut may tear it, while the history itself is whole.
std::optional<HistoryMark> read_mark(const std::filesystem::path& history);

// Writes the mark of a restored or accepted history. Throws StorageError.
void replace_mark(const std::filesystem::path& history, const HistoryMark& mark);

// A history does not hold what its mark says was acked. Another start finds the same.
class HistoryBehindMark final : public CorruptFile {
 public:
  using CorruptFile::CorruptFile;
  int exit_code() const override { return 3; }
};

// Says what is missing when `history` does not hold the record of its mark, and nothing when it does. Opens
// the file for reading, so that its log stays as it is for whoever can save something from it.
std::optional<std::string> missing_before(const std::filesystem::path& history, const HistoryMark& mark);

// Throws HistoryBehindMark, with the ways out, when something is missing.
void refuse_what_is_behind(const std::filesystem::path& history, const HistoryMark& mark);

// The mark of a history that is being written.
class MarkFile {
 public:
  // Makes the file when it does not exist. Throws StorageError.
  explicit MarkFile(const std::filesystem::path& history);
  ~MarkFile();
  MarkFile(const MarkFile&) = delete;
  MarkFile& operator=(const MarkFile&) = delete;

  // To be called after the commit that `mark` tells of is synced, and before its answers leave. The mark
  // itself needs no sync: what a power cut takes of it leaves an older mark, never one ahead of the history.
  // A write that fails leaves an older mark, too, and is logged once.
  void write(const HistoryMark& mark);
  // Once at each start, so that there is a file after a power cut.
  void sync();

 private:
  std::filesystem::path path_;
  int file_ = -1;
  HistoryMark written_;
  bool failed_ = false;
};

}  // namespace allot::aggregator
