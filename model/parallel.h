// Parallel loops of this folder, all on the thread pool that attention uses, because a second pool would
// compete with it for the cores. LibTorch's own pool stays unused (linear.cc): its threads spin long while
// they wait, which costs whole time slices as soon as another process needs a core.
#pragma once

#include <cstdint>
#include <functional>

namespace allot::model {

// `threads`, or all cores when it is 0.
int resolve_threads(int threads);

// Runs task(index, worker) for every index in [0, count), each once, on up to `threads` threads that take
// the next index when they are free; `worker` < threads names memory that no other thread uses meanwhile.
// Returns when all are done. Rethrows the first exception, after which indices may be left out. Not from
// within a task.
void run_parallel(int64_t count, int threads, const std::function<void(int64_t index, int worker)>& task);

}  // namespace allot::model
