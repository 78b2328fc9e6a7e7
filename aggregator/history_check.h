// Checks whether a history is complete and consistent: after a crash, after a backup, or before a restored
// copy is trusted.
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
  bool replayed = false;                              // the replay got to the end
  int64_t policy_version = 0;                         // the last version that the replay gave
  // True when every version's state and description came out equal to the last bit. On a machine whose
  // exp() differs in the last bit they are only equal within rounding. Before schema version 3 only the
  // shares are compared.
  bool exact = false;
  std::vector<HistoryProblem> problems;
};

// Reads all of `file`, as it is at one moment, even while an aggregator writes it, and changes nothing. It
// runs SQLite's own check, checks the format of every row, the numbering, the references between tables and
// the counters against the rows, every value against the checksum chain and the end against the mark of what
// was acked, and replays the history under `spec`, which must give every recorded ask, verdict and version
// again. Lists everything that is wrong, except that the replay ends at its first contradiction. Throws
// NotFound when there is no file, Unsupported for a schema version of a later release, CorruptFile for a file
// that is no database, and StorageError when it cannot be read.
HistoryReport check_history(const std::filesystem::path& file, const wire::RunSpec& spec);

}  // namespace allot::aggregator
