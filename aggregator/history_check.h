// Whether a history is whole: what an operator asks after a crash, of a backup, or before trusting
// a restored copy.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "wire/messages_fwd.h"

namespace allot::aggregator {

struct HistoryProblem {
  std::string where;   // "outcomes, episode 17"; "file"
  std::string what;    // the values found and what was expected
  std::string remedy;  // what to do about it
};

struct HistoryReport {
  int64_t schema_version = 0;
  int64_t epochs = 0;
  std::vector<std::pair<std::string, int64_t>> rows;  // by table
  bool replayed = false;                              // the replay came to its end
  int64_t policy_version = 0;                         // that it gave
  // The state and what is described of it came out to the last bit in every version; where exp() differs in
  // the last bit, as on another machine, they are only equal within rounding. Before schema version 3 the
  // shares alone are compared.
  bool exact = false;
  std::vector<HistoryProblem> problems;
};

// Reads the whole of `file` at one moment, also while an aggregator writes it, and changes nothing: SQLite's
// own check, the format of every row, the numbering, the references between tables, the counters against the
// rows, and a replay under `spec` that must give every recorded ask, verdict and version again. Everything
// found is listed, except that the replay ends at its first contradiction. Throws NotFound when there is no
// file, Unsupported for a schema version of a later release, CorruptFile for what is no database and
// StorageError when it cannot be read.
HistoryReport check_history(const std::filesystem::path& file, const wire::RunSpec& spec);

}  // namespace allot::aggregator
