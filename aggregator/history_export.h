// Writes the rows of a history as text for other programs, one at a time, so that a history of any length
// needs little memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace allot::aggregator {

enum class ExportFormat : uint8_t { kJsonLines, kCsv };

// Tables that can be exported, "episodes" first. The columns are those of docs/history-schema.md; outcomes
// have their reward as a further column.
std::vector<std::string> exported_tables();

// Writes all rows of `table` in the order in which they were written, as they are at one moment, even while
// an aggregator goes on writing. JSON lines: one object a row, lists as arrays. CSV (RFC 4180): first a line
// of names, lists as text. Returns the number of rows. Throws InvalidArgument for a table that is not in
// exported_tables() or that the file's schema version does not have, and NotFound, Unsupported, CorruptFile,
// StorageError (also when `out` fails).
int64_t export_history(const std::filesystem::path& file, std::string_view table, ExportFormat format,
                       std::ostream& out);

}  // namespace allot::aggregator
