// Which kernels a stretch of work runs on the current process' GPUs and how long each takes, as CUPTI reports
// them: with the work's own clocks, overlaps and CUDA graphs, every node of a graph apart. CUPTI is the one
// that LibTorch brings.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace allot::bench {

struct KernelTime {
  std::string name;      // as declared, without template and function arguments
  int64_t launches = 0;  // in the whole stretch
  double seconds = 0;    // summed over the launches; kernels that overlap count twice
};

// Nanoseconds of one clock.
struct KernelSpan {
  uint64_t start = 0, end = 0;
};

struct BusyTime {
  double busy_seconds = 0;   // in which at least one of them ran
  double whole_seconds = 0;  // from the start of the first to the end of the last
};
BusyTime busy_time(std::vector<KernelSpan> spans);

struct KernelProfile {
  std::vector<KernelTime> kernels;  // longest first; "copy" and "clear" stand for the driver's
  BusyTime time;
};

// Runs `work`, which waits for the GPU before it returns, and reports its kernels. Recording costs about a
// microsecond a kernel, so time the work without it. Throws NotFound where CUPTI is not at hand, Error when
// it refuses (another profiler holds it).
KernelProfile profile_kernels(const std::function<void()>& work);

// "ns::score<8, true>(Args)" -> "ns::score"; exposed for its test.
std::string short_kernel_name(const std::string& declared);

}  // namespace allot::bench
