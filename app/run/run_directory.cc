#include "app/run/run_directory.h"

#include "aggregator/run_directory.h"
#include "base/file.h"

namespace allot::app {
namespace {

std::optional<std::string> read_address(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return std::nullopt;
  std::string text = read_file(file);
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  if (text.empty()) return std::nullopt;
  return text;
}

}  // namespace

std::filesystem::path schedule_file(const std::filesystem::path& run) {
  return run / "schedule.json";
}
std::filesystem::path report_file(const std::filesystem::path& run) {
  return run / "report.html";
}
std::filesystem::path page_file(const std::filesystem::path& run) {
  return run / "page.html";
}
std::filesystem::path tensorboard_directory(const std::filesystem::path& run) {
  return run / "tb";
}
std::filesystem::path log_file(const std::filesystem::path& run, const std::string& process) {
  return run / "log" / (process + ".log");
}

std::optional<std::string> read_endpoint(const std::filesystem::path& run) {
  return read_address(aggregator::endpoint_path(run));
}
std::optional<std::string> read_http_url(const std::filesystem::path& run) {
  return read_address(aggregator::http_path(run));
}

}  // namespace allot::app
