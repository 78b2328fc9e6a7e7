// Files of a run directory that the tools write beside the aggregator's own (aggregator/run_directory.h).
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace allot::app {

std::filesystem::path schedule_file(const std::filesystem::path& run);
std::filesystem::path report_file(const std::filesystem::path& run);
// The live page as the aggregator left it.
std::filesystem::path page_file(const std::filesystem::path& run);
std::filesystem::path tensorboard_directory(const std::filesystem::path& run);
std::filesystem::path log_file(const std::filesystem::path& run, const std::string& process);

// Where the run's aggregator listens; nothing when none has announced itself. A killed aggregator leaves its
// last address behind.
std::optional<std::string> read_endpoint(const std::filesystem::path& run);
// The same for the URL of its live page.
std::optional<std::string> read_http_url(const std::filesystem::path& run);

}  // namespace allot::app
