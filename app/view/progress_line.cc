#include "app/view/progress_line.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "app/view/progress.h"
#include "base/number_text.h"

namespace allot::app {

ProgressLine::ProgressLine(std::string unit)
    : unit_(std::move(unit)), terminal_(::isatty(STDERR_FILENO) == 1), start_(clock_.now()), last_(start_) {}

ProgressLine::~ProgressLine() {
  if (drawn_) std::fputc('\n', stderr);
}

void ProgressLine::update(int64_t done, int64_t wanted) {
  const Timestamp now = clock_.now();
  const bool last = done == wanted;
  if (now - last_ < (terminal_ ? Duration(200) : Duration(10'000)) && !(last && terminal_)) return;
  last_ = now;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double left =
      done == 0 ? -1 : elapsed * static_cast<double>(wanted - done) / static_cast<double>(done);
  const std::string line =
      fmt::format("{} of {} {} ({}), {} left", done, wanted, unit_,
                  percent(static_cast<double>(done) / static_cast<double>(wanted), 0), duration_text(left));
  if (terminal_) {
    std::fprintf(stderr, "\r\x1b[K%s", line.c_str());
    drawn_ = true;
  } else {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
  std::fflush(stderr);
}

}  // namespace allot::app
