// `allot status --watch`: a run's status as a picture of text, drawn in place on a terminal. It shows what
// the live page shows.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "wire/messages_fwd.h"

namespace allot::app {

// Columns and rows of a terminal.
struct ScreenSize {
  size_t columns = 80;
  size_t rows = 24;
};

// The status in lines that fit the size: what matters most comes first, and the lists that do not fit
// (layers, counters, workers) end with how many more there are. `notice` is a line of its own, on top, when
// not empty.
std::vector<std::string> status_screen(const wire::Status& status, std::string_view notice, ScreenSize size);

// One line with the same numbers, for logs and pipes.
std::string status_line(const wire::Status& status);

}  // namespace allot::app
