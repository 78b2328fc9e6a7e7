// What `allot bench attention` prints: the machine once, then a row per shape and kernel, as a table or as
// JSON. Pure text; no clock and no device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace allot::bench::attention {

// Where the numbers come from.
struct Machine {
  std::string device;        // "NVIDIA H200"
  std::string driver;        // "580.82.07"
  std::string cuda_runtime;  // "13.0"
  std::string torch;
  std::string cudnn;
  std::string allot;
  double read_bytes_per_second = 0;  // measured by a kernel that only reads
};

// What happens to memory larger than the caches before each run. An update leaves L2 full of lines that the
// timed call has to make room for by writing them to memory (S2ANTA paper, Appendix R). A read leaves lines
// that only need to be dropped, as attention finds them in a model's step, which reads weights before it.
enum class Flush { kUpdate, kRead };
constexpr std::string_view name(Flush flush) {
  return flush == Flush::kUpdate ? "update" : "read";
}

// How every row was measured.
struct Conditions {
  std::string dtype;
  double score_deviation = 1;
  int64_t flushed_bytes = 0;  // touched before each run
  Flush flush = Flush::kUpdate;
  int32_t warmups = 0;
  int32_t runs = 0;
};

struct Spread {
  double median = 0;
  double p5 = 0;
  double p95 = 0;
};

// Median and percentiles, linear between the two nearest values. `values` is not empty.
Spread spread_of(const std::vector<double>& values);

struct Row {
  // What was measured.
  std::string shape;
  int32_t batch = 0;
  int32_t shortest = 0;
  int32_t longest = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t fewest_samples = 0;  // 0 where nothing is sampled
  int32_t most_samples = 0;
  std::string engine = {};  // "allot", "torch"
  std::string kernel = {};  // "sys", "flash-attention"
  std::string cache = {};   // "pages of 16, shuffled", "[batch, heads, keys, dim]"
  int64_t key_bytes = 0;

  // What came out; without a time `note` says why.
  std::optional<Spread> microseconds = {};
  bool graph = true;                              // false: launched without a CUDA graph, and `note` says why
  std::optional<double> rms_error = {};           // to allot's exact output
  std::optional<double> max_relative_error = {};  // the same, by row; exact kernels only
  std::optional<double> best_exact_microseconds = {};
  std::string best_exact = {};  // the fastest kernel of another engine on this shape
  std::string note = {};
};

// Bytes per second over the median. Nothing without a time.
std::optional<double> key_rate(const Row& row);

// Best exact median over this row's. Nothing without either.
std::optional<double> ratio(const Row& row);

// The lines above the table, the table's own head included.
std::string table_head(const Machine& machine, const Conditions& conditions);

// One line of the table, and one more for a note; ends with a line break.
std::string table_line(const Row& row, const Machine& machine);

// One JSON object on one line, with a line break.
std::string row_line(const Row& row, const Machine& machine, const Conditions& conditions);

}  // namespace allot::bench::attention
