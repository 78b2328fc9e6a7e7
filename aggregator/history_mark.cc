#include "aggregator/history_mark.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <string>

#include "aggregator/history_chain.h"
#include "aggregator/history_format.h"
#include "aggregator/sqlite.h"
#include "base/file.h"
#include "base/log.h"

namespace allot::aggregator {
namespace {

constexpr size_t kSumDigits = 16;

// One line of constant length, far below a disk sector, so that it is overwritten in one piece.
std::string text_of(const HistoryMark& mark) {
  const std::string line =
      fmt::format("allot-history-mark 1 epoch {:019} seq {:019} episodes {:019} digest {}", mark.epoch,
                  mark.seq, mark.episodes, hex(mark.digest));
  return line + " sum " + sha256_hex(line).substr(0, kSumDigits) + "\n";
}

std::optional<HistoryMark> parse_mark(const std::string& text) {
  HistoryMark mark;
  std::istringstream words(text);
  std::string title, version, epoch, seq, episodes, digest, hex_digits;
  words >> title >> version >> epoch >> mark.epoch >> seq >> mark.seq >> episodes >> mark.episodes >>
      digest >> hex_digits;
  if (!words || hex_digits.size() != 2 * mark.digest.size()) return std::nullopt;
  for (size_t i = 0; i < mark.digest.size(); ++i) {
    const std::string byte = hex_digits.substr(2 * i, 2);
    mark.digest[i] = static_cast<unsigned char>(std::strtoul(byte.c_str(), nullptr, 16));
  }
  // The whole text must be the one that these values have, its sum with it.
  if (text_of(mark) != text) return std::nullopt;
  return mark;
}

}  // namespace

std::filesystem::path mark_path(const std::filesystem::path& history) {
  std::filesystem::path path = history;
  return path.replace_extension(".mark");
}

std::optional<HistoryMark> read_mark(const std::filesystem::path& history) {
  const std::filesystem::path path = mark_path(history);
  if (!std::filesystem::exists(path)) return std::nullopt;
  const std::optional<HistoryMark> mark = parse_mark(read_file(path));
  if (!mark) {
    spdlog::warn(
        "{} is damaged, as after a power cut, and is written anew; whether {} still holds everything that was "
        "acked cannot be said this time",
        path.string(), history.string());
  }
  return mark;
}

void replace_mark(const std::filesystem::path& history, const HistoryMark& mark) {
  write_file_atomically(mark_path(history), text_of(mark));
}

std::optional<std::string> missing_before(const std::filesystem::path& history, const HistoryMark& mark) {
  // Nothing was acked yet.
  if (mark.seq == 0) return std::nullopt;
  const std::string acked = fmt::format("{} says that record {} with {} episodes was acked in epoch {}",
                                        mark_path(history).string(), mark.seq, mark.episodes, mark.epoch);
  if (!std::filesystem::exists(history)) {
    return fmt::format("{} is missing, and {}: {} acked episodes are lost with it", history.string(), acked,
                       mark.episodes);
  }
  const Database database(history, Database::Mode::kReadOnly);
  if (Statement(database, "SELECT count(*) FROM sqlite_schema").value() == 0) {
    return fmt::format("{} holds no tables, and {}: {} acked episodes are missing", history.string(), acked,
                       mark.episodes);
  }
  if (const int64_t version = check_schema_version(database); version < kChainSince) {
    return fmt::format("{} is of schema version {}, older than its mark, and {}", history.string(), version,
                       acked);
  }
  const auto link = link_at(database, mark.seq);
  if (link == mark.digest) return std::nullopt;
  if (link) {
    return fmt::format("{} holds other records up to number {} than those that were acked, and {}",
                       history.string(), mark.seq, acked);
  }
  const int64_t end = chain_end(database).seq;
  const int64_t episodes = Statement(database, "SELECT count(*) FROM outcomes").value();
  if (end >= mark.seq) {
    return fmt::format("{} has no commit that ends with record {}, and {}", history.string(), mark.seq,
                       acked);
  }
  return fmt::format(
      "{} ends with record {} and {} episodes, and {}: records {} to {}, {} acked episodes, are missing",
      history.string(), end, episodes, acked, end + 1, mark.seq, mark.episodes - episodes);
}

void refuse_what_is_behind(const std::filesystem::path& history, const HistoryMark& mark) {
  const auto missing = missing_before(history, mark);
  if (!missing) return;
  const std::string run = history.parent_path().string();
  throw HistoryBehindMark(fmt::format(
      "{} (its write-ahead log {}-wal was lost or damaged, or an older copy was put here). Nothing was changed: "
      "copy the run directory first; then restore the newest backup by 'allot history restore BACKUP --run {}', "
      "or go on without what is missing by 'allot history accept {}'",
      *missing, history.filename().string(), run, run));
}

MarkFile::MarkFile(const std::filesystem::path& history) : path_(mark_path(history)) {
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (file_ < 0) {
    throw StorageError(
        fmt::format("cannot write {}, the mark of what was acked: {}", path_.string(), std::strerror(errno)));
  }
  // Whatever was there, the line that is written next is all that remains.
  (void)!::ftruncate(file_, static_cast<off_t>(text_of({}).size()));
}

MarkFile::~MarkFile() {
  ::close(file_);
}

void MarkFile::write(const HistoryMark& mark) {
  if (mark == written_) return;
  const std::string text = text_of(mark);
  if (::pwrite(file_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size())) {
    written_ = mark;
    return;
  }
  if (!failed_) {
    spdlog::warn(
        "cannot write {}: {}; the history is whole, but a loss of its log would go unnoticed from record {} on",
        path_.string(), std::strerror(errno), mark.seq);
  }
  failed_ = true;
}

void MarkFile::sync() {
  (void)::fsync(file_);
}

}  // namespace allot::aggregator
