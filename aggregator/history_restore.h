// Puts another history in place of a run's: a backup, or what is left of one that lost what was acked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace allot::aggregator {

struct RestoredHistory {
  int64_t seq = 0;         // of its last record
  int64_t episodes = 0;    // outcomes that it holds
  int64_t next_epoch = 0;  // of the next start: above every epoch that the run is known to have had
  std::optional<int64_t> episodes_lost{};  // acked episodes that are asked again, as far as a mark tells
  std::optional<std::filesystem::path> put_aside{};  // where the files are that were replaced
};

// Puts the history of the directory `backup` (history.sqlite with its spec.json) into the run directory
// `run`, which is made when it does not exist. The backup is checked first and must have no problem. What is
// there is moved into a directory of its own, nothing is deleted. The new mark makes the next epoch follow on
// the highest that the mark, the replaced history or the backup knows: workers of the time that is lost hold
// another epoch, so that what they send is answered by the request to say hello. When the process dies before
// the end, the run either is as before or is refused until the restore is done again. Throws NotFound,
// CorruptFile (the backup has problems), Mismatch (of another spec), StorageError (also when an aggregator
// works on `run`).
RestoredHistory restore_history(const std::filesystem::path& backup, const std::filesystem::path& run);

// Takes the history that is in `run` for the whole one, whatever its mark says; where none is left, the run
// begins anew. That mark is kept beside the new one, as history.mark.refused. Throws as restore_history does.
RestoredHistory accept_history(const std::filesystem::path& run);

}  // namespace allot::aggregator
