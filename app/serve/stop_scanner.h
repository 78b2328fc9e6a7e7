// Ends a text before the first of some stop strings while it comes in pieces.
#pragma once

#include <string>
#include <vector>

namespace allot::app {

class StopScanner {
 public:
  // No stop string is empty.
  explicit StopScanner(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // The part of the text so far that may be shown now: what might be the beginning of a stop string waits.
  // Nothing more comes once a stop string was found.
  std::string add(const std::string& piece);
  // What waited when the text ended without a stop string.
  std::string rest();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string waiting_;
  bool stopped_ = false;
};

}  // namespace allot::app
