#include "app/cli/open_files.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace allot::app {

int64_t raise_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  if (limit.rlim_cur < limit.rlim_max) {
    rlimit raised = limit;
    raised.rlim_cur = raised.rlim_max;
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int64_t>::max()));
}

void require_open_files(int64_t wanted) {
  if (const int64_t limit = raise_open_files(); limit < wanted) {
    throw Error(fmt::format(
        "{} files must be open at once, this process may open {}; raise the hard limit (ulimit -Hn, "
        "LimitNOFILE of the service) or ask for fewer workers",
        wanted, limit));
  }
}

}  // namespace allot::app
