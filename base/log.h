// Logs go to stderr (spdlog), results to stdout. set_up_logging is called once, by an executable's main.
#pragma once

#include <spdlog/spdlog.h>

#include <string>
#include <string_view>

namespace allot {

// Sends log lines to stderr with time, level and `name` (the command). `level` is one of trace, debug, info,
// warn, error, off; anything else throws UsageError naming them.
void set_up_logging(const std::string& name, const std::string& level);

// From now on a log line is a JSON object: "time" (ISO 8601 with milliseconds and the offset from UTC),
// "level", "name", "message". Bytes of a message that are not UTF-8 become U+FFFD.
void log_as_json();

// Writes the error that ends the command `name` to stderr, whatever the level, in the form of the log lines
// where these are JSON, else as one line "allot NAME: TEXT".
void report_error(std::string_view name, std::string_view text);

// `text` between quotes, as JSON has it.
std::string json_text(std::string_view text);

}  // namespace allot
