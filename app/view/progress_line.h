// How far a command is that works in this process.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace allot::app {

// "12 of 64 answers (19%), 40s left" on standard error: a line redrawn on a terminal, a line every ten
// seconds elsewhere.
class ProgressLine {
 public:
  // `what` is counted: "answers".
  explicit ProgressLine(std::string what);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void update(int64_t done, int64_t wanted);

 private:
  std::string what_;
  SystemClock clock_;
  bool terminal_;
  bool drawn_ = false;
  Timestamp start_;
  Timestamp last_;
};

}  // namespace allot::app
