// How far a command is, on standard error: a line redrawn on a terminal, a line every ten seconds elsewhere.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace allot::app {

class ProgressLine {
 public:
  // `unit` is what is counted: "answers".
  explicit ProgressLine(std::string unit);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // 0 <= done <= wanted, wanted > 0. Cheap: most calls draw nothing.
  void update(int64_t done, int64_t wanted);

 private:
  SystemClock clock_;
  std::string unit_;
  bool terminal_;
  bool drawn_ = false;
  Timestamp start_;
  Timestamp last_;
};

}  // namespace allot::app
