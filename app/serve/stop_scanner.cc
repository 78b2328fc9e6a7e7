#include "app/serve/stop_scanner.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace allot::app {
namespace {

// How many bytes at the end of `text` begin `stop`, which is not in it.
size_t begun(std::string_view text, std::string_view stop) {
  for (size_t bytes = std::min(text.size(), stop.size() - 1); bytes > 0; --bytes)
    if (text.ends_with(stop.substr(0, bytes))) return bytes;
  return 0;
}

}  // namespace

std::string StopScanner::add(const std::string& piece) {
  if (stopped_) return "";
  waiting_ += piece;
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, waiting_.find(stop));
  if (end != std::string::npos) {
    stopped_ = true;
    return std::exchange(waiting_, "").substr(0, end);
  }
  size_t kept = 0;
  for (const std::string& stop : stops_) kept = std::max(kept, begun(waiting_, stop));
  std::string shown = waiting_.substr(0, waiting_.size() - kept);
  waiting_.erase(0, shown.size());
  return shown;
}

std::string StopScanner::rest() {
  return std::exchange(waiting_, "");
}

}  // namespace allot::app
