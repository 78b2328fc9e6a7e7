#include "aggregator/history_restore.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "aggregator/history.h"
#include "aggregator/history_backup.h"
#include "aggregator/history_chain.h"
#include "aggregator/history_check.h"
#include "aggregator/history_files.h"
#include "aggregator/history_format.h"
#include "aggregator/history_mark.h"
#include "aggregator/run_directory.h"
#include "aggregator/sqlite.h"
#include "base/error.h"
#include "wire/messages.pb.h"
#include "wire/spec.h"

namespace allot::aggregator {
namespace {

namespace fs = std::filesystem;

// Throws CorruptFile with the first problem of `history`.
void expect_whole(const fs::path& history, const wire::RunSpec& spec) {
  const HistoryReport report = check_history(history, spec);
  const std::string mark = mark_path(history).filename().string();
  for (const HistoryProblem& problem : report.problems) {
    if (problem.where == mark) continue;  // that is what is to be accepted
    throw CorruptFile(fmt::format(
        "{} is not whole: {}: {}{}; 'allot history check' lists everything, take another "
        "backup",
        history.string(), problem.where, problem.what,
        report.problems.size() > 1 ? fmt::format(", and {} further problems", report.problems.size() - 1)
                                   : ""));
  }
}

// The mark that `history` itself gives.
HistoryMark mark_of(const Database& database) {
  const ChainEnd end = chain_end(database);
  return {Statement(database, "SELECT ifnull(max(epoch), 0) FROM epochs").value(), end.seq,
          Statement(database, "SELECT count(*) FROM outcomes").value(), end.digest};
}

// The highest epoch of a history that may be damaged.
int64_t newest_epoch_of(const fs::path& history) {
  if (!fs::exists(history)) return 0;
  try {
    return read_sqlite_history(history)->epoch();
  } catch (const Error&) {
    return 0;
  }
}

// False for a file that is missing or whose log held everything.
bool holds_tables(const fs::path& history) {
  return fs::exists(history) &&
         Statement(Database(history, Database::Mode::kReadOnly), "SELECT count(*) FROM sqlite_schema")
                 .value() > 0;
}

void move(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error)
    throw StorageError(fmt::format("cannot move {} to {}: {}", from.string(), to.string(), error.message()));
}

std::optional<fs::path> put_aside(const fs::path& history) {
  const auto files = history_files(history);
  if (std::ranges::none_of(files, [](const fs::path& file) { return fs::exists(file); })) return std::nullopt;
  int number = 1;
  const auto place = [&] { return history.parent_path() / fmt::format("replaced-{}", number); };
  while (fs::exists(place())) ++number;
  std::error_code error;
  fs::create_directory(place(), error);
  if (error) throw StorageError(fmt::format("cannot make {}: {}", place().string(), error.message()));
  // Kept where it is, too: until the new one is written it refuses what is half done.
  if (fs::exists(mark_path(history)))
    fs::copy_file(mark_path(history), place() / mark_path(history).filename(), error);
  for (const fs::path& file : files)
    if (fs::exists(file)) move(file, place() / file.filename());
  return place();
}

RestoredHistory restored(const HistoryMark& mark, const std::optional<HistoryMark>& before) {
  RestoredHistory result{.seq = mark.seq, .episodes = mark.episodes, .next_epoch = mark.epoch + 1};
  if (before) result.episodes_lost = std::max<int64_t>(0, before->episodes - mark.episodes);
  return result;
}

}  // namespace

RestoredHistory restore_history(const fs::path& backup, const fs::path& run) {
  const fs::path source = history_path(backup);
  if (!fs::exists(source) || !fs::exists(spec_path(backup))) {
    throw NotFound(fmt::format("{} holds no backup: {} and {} are expected", backup.string(), source.string(),
                               spec_path(backup).string()));
  }
  if (fs::weakly_canonical(backup) == fs::weakly_canonical(run)) {
    throw InvalidArgument(
        fmt::format("{} is the run itself; 'allot history accept {}' goes on with what it holds",
                    run.string(), run.string()));
  }
  const wire::RunSpec spec = wire::read_spec(spec_path(backup));
  expect_whole(source, spec);
  const RunDirectory locked(run, spec);
  const fs::path history = history_path(run);
  const fs::path copy = history.string() + ".restored";
  std::error_code ignored;
  fs::remove(copy, ignored);
  (void)backup_history(source, copy);
  HistoryMark mark;
  {
    Database database(copy, Database::Mode::kReadWrite);
    // A backup from before the chain gets it now, so that a mark can say where it ends.
    bring_up_to_date(&database);
    mark = mark_of(database);
  }
  const auto before = read_mark(history);
  mark.epoch = std::max({mark.epoch, newest_epoch_of(history), before ? before->epoch : 0});
  // A run without a mark gets one, so that it is refused while its history is away.
  if (!before) replace_mark(history, mark);
  RestoredHistory result = restored(mark, before);
  result.put_aside = put_aside(history);
  move(copy, history);
  replace_mark(history, mark);
  return result;
}

RestoredHistory accept_history(const fs::path& run) {
  const fs::path history = history_path(run);
  const bool marked = fs::exists(mark_path(history));
  if (!fs::exists(spec_path(run)) || (!fs::exists(history) && !marked)) {
    throw NotFound(fmt::format(
        "{} holds no run: {} and {} are expected; restore a backup, or choose another directory for a "
        "new run",
        run.string(), spec_path(run).string(), history.string()));
  }
  const RunDirectory locked(run, wire::read_spec(spec_path(run)));
  HistoryMark mark;
  if (holds_tables(history)) {
    expect_whole(history, locked.spec());
    Database database(history, Database::Mode::kReadWrite);
    bring_up_to_date(&database);
    mark = mark_of(database);
  }
  const auto before = read_mark(history);
  if (before) mark.epoch = std::max(mark.epoch, before->epoch);
  if (marked) {
    fs::copy_file(mark_path(history), mark_path(history).string() + ".refused",
                  fs::copy_options::overwrite_existing);
  }
  replace_mark(history, mark);
  return restored(mark, before);
}

}  // namespace allot::aggregator
