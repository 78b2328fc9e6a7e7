#include "aggregator/history_backup.h"

#include <fmt/format.h>

#include <system_error>

#include "aggregator/history_files.h"
#include "aggregator/history_format.h"
#include "aggregator/sqlite.h"
#include "base/error.h"

namespace allot::aggregator {
namespace {

void copy_database(const std::filesystem::path& from, const std::filesystem::path& to) {
  const Database source(from, Database::Mode::kReadOnly);
  check_schema_version(source);
  Database copy(to, Database::Mode::kReadWrite);
  sqlite3_backup* backup = sqlite3_backup_init(copy.handle(), "main", source.handle(), "main");
  if (backup == nullptr) copy.fail(sqlite3_errcode(copy.handle()), "starting a backup");
  // One step copies all pages of one snapshot; the writer does not disturb it and does not wait for it. In
  // several steps, each commit of the aggregator would start the copy again from the beginning.
  const int stepped = sqlite3_backup_step(backup, -1);
  const int finished = sqlite3_backup_finish(backup);
  if (stepped != SQLITE_DONE) copy.fail(stepped, "writing a backup");
  if (finished != SQLITE_OK) copy.fail(finished, "finishing a backup");
}

}  // namespace

int64_t backup_history(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (!std::filesystem::exists(from)) throw NotFound(fmt::format("there is no history {}", from.string()));
  if (std::filesystem::exists(to)) {
    throw InvalidArgument(fmt::format("{} exists; name a new place, a backup replaces nothing", to.string()));
  }
  const std::filesystem::path partial = to.string() + ".partial";
  std::error_code ignored;
  std::filesystem::remove(partial, ignored);
  try {
    copy_database(from, partial);
    std::filesystem::rename(partial, to);
  } catch (...) {
    std::filesystem::remove(partial.string() + "-journal", ignored);
    for (const std::filesystem::path& file : history_files(partial)) std::filesystem::remove(file, ignored);
    throw;
  }
  return static_cast<int64_t>(std::filesystem::file_size(to));
}

}  // namespace allot::aggregator
