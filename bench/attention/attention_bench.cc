#include "bench/attention/attention_bench.h"

#include <dlfcn.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "bench/attention/cold_timer.h"
#include "bench/attention/own_launch.h"
#include "bench/attention/torch_peers.h"

namespace allot::bench::attention {
namespace {

// Two exact kernels differ by the rounding of their outputs and of the weights between the two matrix
// products: a few parts in a thousand of the row's largest element. A kernel that misses or repeats keys of a
// short sequence is far off.
constexpr double kPeerTolerance = 0.03;
// Capacity of a contiguous cache is a multiple of this, as pages of allot's kernels are.
constexpr int32_t kPageMultiple = 16;

// LibTorch's messages end with a backtrace of many lines.
std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

// The driver's own version; the CUDA runtime only knows the newest CUDA that a driver supports.
std::string driver_version() {
  void* library = ::dlopen("libnvidia-ml.so.1", RTLD_LAZY);
  if (library == nullptr) return "unknown (no libnvidia-ml.so.1)";
  using Start = int (*)();
  using Version = int (*)(char*, unsigned);
  const auto init = reinterpret_cast<Start>(::dlsym(library, "nvmlInit_v2"));
  const auto version = reinterpret_cast<Version>(::dlsym(library, "nvmlSystemGetDriverVersion"));
  const auto shutdown = reinterpret_cast<Start>(::dlsym(library, "nvmlShutdown"));
  std::string text = "unknown";
  if (init != nullptr && version != nullptr && shutdown != nullptr && init() == 0) {
    char buffer[96] = {};
    if (version(buffer, sizeof buffer) == 0) text = buffer;
    shutdown();
  }
  ::dlclose(library);
  return text;
}

// ", value-norms 0": what rows are measured with beside the estimator's usual parameters.
std::string unusual_parameters(kernels::Estimator estimator, const kernels::ParameterValues& values) {
  std::string text;
  const std::span<const double> own = kernels::own_parameters(estimator, values);
  for (size_t i = 0; i < own.size(); ++i) {
    const kernels::MethodParameter& parameter = kernels::row_of(estimator).parameters[i];
    if (own[i] != parameter.usual) text += fmt::format(", {} {}", parameter.name, own[i]);
  }
  return text;
}

Machine machine_of(const TorchRuntime& torch, const char* allot_version) {
  int device = 0;
  cudaDeviceProp properties{};
  check(cudaGetDevice(&device), "ask for the current device");
  check(cudaGetDeviceProperties(&properties, device), "ask for the properties of the device");
  return {.device = properties.name,
          .driver = driver_version(),
          .cuda_runtime = torch.cuda_runtime_version(),
          .torch = torch.torch_version(),
          .cudnn = torch.cudnn_version(),
          .allot = allot_version};
}

Row row_of(const Shape& shape, int64_t bytes_of_keys) {
  return {.shape = shape.name,
          .batch = shape.batch,
          .shortest = shape.shortest,
          .longest = shape.longest,
          .num_q_heads = shape.num_q_heads,
          .num_kv_heads = shape.num_kv_heads,
          .head_dim = shape.head_dim,
          .key_bytes = bytes_of_keys};
}

// A batch's keys and values in one layout.
struct Layout {
  std::string name;
  PagePlan plan;
  KvPages pages;
};

// Everything about one shape; made from scratch for the next.
class ShapeRun {
 public:
  ShapeRun(const AttentionWorkload& workload, const Shape& shape, const TorchRuntime& torch,
           const ColdTimer& timer, const Listener& listener)
      : workload_(workload),
        shape_(shape),
        torch_(torch),
        timer_(timer),
        listener_(listener),
        lengths_(lengths_of(shape)),
        budgets_(budgets_of(shape)),
        batch_(torch, shape, lengths_, workload.dtype, workload.score_deviation),
        empty_row_(row_of(shape, key_bytes(shape, lengths_, kernels::size_of(workload.dtype)))) {
    if (workload.paged) {
      add_layout(fmt::format("pages of {}, shuffled", workload.page_size),
                 plan_pages(lengths_, workload.page_size, PageOrder::kShuffled));
    }
    if (workload.contiguous) add_layout("contiguous", plan_contiguous(lengths_, kPageMultiple));
  }

  // Returns how many own rows failed.
  int run() {
    const std::string exact_fault = make_exact();
    if (workload_.with_peers) {
      for (const Peer& peer : batch_.peers()) time_peer(peer, exact_fault);
    }
    for (const Layout& layout : layouts_) {
      for (const kernels::Estimator estimator : workload_.estimators) {
        for (const KeyFormat keys : workload_.key_formats) {
          // Over the high plane alone exact attention is that of other keys, not what `sound` expects.
          const bool is_exact = !kernels::row_of(estimator).samples;
          if (!is_exact || keys != KeyFormat::kHighPlane) time_own(estimator, keys, layout);
        }
      }
    }
    return failures_;
  }

 private:
  void add_layout(std::string name, PagePlan plan) {
    const KvPages pages = batch_.pages(plan);
    layouts_.push_back({std::move(name), std::move(plan), pages});
  }

  std::unique_ptr<OwnLaunch> launch(const Layout& layout, const kernels::AttentionMethod& method,
                                    KeyFormat keys = KeyFormat::kSixteenBits) const {
    return std::make_unique<OwnLaunch>(Batch{.shape = &shape_,
                                             .lengths = lengths_,
                                             .budgets = budgets_,
                                             .dtype = workload_.dtype,
                                             .query = batch_.query(),
                                             .key_pages = layout.pages.keys,
                                             .value_pages = layout.pages.values,
                                             .plan = &layout.plan},
                                       method, keys, torch_.stream());
  }

  // The output that all others are compared with; on a fault there is none, and the fault is returned.
  std::string make_exact() {
    try {
      auto exact = launch(layouts_.front(), {.estimator = kernels::Estimator::kExact});
      exact->queue();
      exact->check_result();
      exact_ = std::move(exact);
      return {};
    } catch (const std::exception& error) {
      return first_line(error.what());
    }
  }

  void time_peer(const Peer& peer, const std::string& exact_fault) {
    Row row = empty_row_;
    row.engine = "torch";
    row.kernel = peer.name;
    row.cache = peer.cache;
    if (exact_ == nullptr) {
      row.note = "not timed, because allot's exact kernel, which checks it, failed: " + exact_fault;
    } else {
      try {
        peer.queue();
        if (accepted(peer.difference(exact_->output()), row)) {
          take_time(peer.queue, row);
          // The graph's output too: it is the graph that was timed.
          if (!accepted(peer.difference(exact_->output()), row)) row.microseconds.reset();
        }
      } catch (const std::exception& error) {
        row.microseconds.reset();
        row.note = "not timed: " + first_line(error.what());
      }
    }
    if (row.microseconds && (!best_ || row.microseconds->median < best_->microseconds->median)) best_ = row;
    report(row);
  }

  // Notes the differences, and whether they are those of an exact kernel.
  static bool accepted(const Difference& difference, Row& row) {
    row.rms_error = difference.rms;
    row.max_relative_error = difference.max_relative;
    if (difference.max_relative <= kPeerTolerance) return true;  // false for NaN
    row.note = fmt::format(
        "not timed: its output differs from allot's exact one by {:.4f} of a row's largest element; at "
        "most {} is expected of an exact kernel",
        difference.max_relative, kPeerTolerance);
    return false;
  }

  void time_own(kernels::Estimator estimator, KeyFormat keys, const Layout& layout) {
    Row row = empty_row_;
    row.engine = "allot";
    row.kernel = kernels::name(estimator);
    row.cache = layout.name;
    if (keys != KeyFormat::kSixteenBits) row.cache += fmt::format(", keys {}", kernels::name(keys));
    const bool is_exact = !kernels::row_of(estimator).samples;
    if (!is_exact) {
      row.fewest_samples = shape_.fewest_samples;
      row.most_samples = shape_.most_samples;
      if (workload_.method.score_stage != kernels::ScoreStage::kExact)
        row.cache += ", scores " + kernels::describe_scores(workload_.method);
      if (workload_.method.unit != kernels::BudgetUnit::kSamples)
        row.cache += ", budgets in " + std::string(kernels::name(workload_.method.unit));
      row.cache += unusual_parameters(estimator, workload_.method.parameters);
    }
    kernels::AttentionMethod method = workload_.method;
    method.estimator = estimator;
    if (is_exact) method = {.estimator = estimator};
    const std::string unsuitable = is_exact ? std::string() : why_unsuitable(method, lengths_, budgets_);
    if (!unsuitable.empty()) {
      row.note = "not measured: " + unsuitable;
      report(row);
      return;
    }
    try {
      measure_own(method, keys, layout, row);
    } catch (const std::exception& error) {
      row.microseconds.reset();
      row.note = "failed: " + first_line(error.what());
    }
    if (!row.microseconds || !row.graph) ++failures_;
    report(row);
  }

  void measure_own(const kernels::AttentionMethod& method, KeyFormat keys, const Layout& layout,
                   Row& row) const {
    const auto own = launch(layout, method, keys);
    own->queue();
    if (!sound(*own, method, row)) return;
    take_time([&own] { own->queue(); }, row);
    if (!sound(*own, method, row)) row.microseconds.reset();
  }

  // Waits for the launch and notes how far its output is from the exact one. An exact output must agree with
  // it; a sampled one must be made of numbers, since how near it lies is a matter of the budget.
  bool sound(const OwnLaunch& own, const kernels::AttentionMethod& method, Row& row) const {
    own.check_result();
    if (exact_ == nullptr) return true;
    const Difference difference = batch_.difference(own.output(), exact_->output());
    if (!kernels::row_of(method.estimator).samples) return accepted(difference, row);
    row.rms_error = difference.rms;
    if (std::isfinite(difference.rms)) return true;
    row.note = "failed: the output holds numbers that are not finite";
    return false;
  }

  void take_time(const std::function<void()>& queue, Row& row) const {
    const Timings timings = timer_.time(queue);
    row.microseconds = spread_of(timings.microseconds);
    row.graph = timings.why_no_graph.empty();
    if (!row.graph) row.note = "launched without a CUDA graph: " + first_line(timings.why_no_graph);
  }

  void report(Row row) const {
    if (best_) {
      row.best_exact = best_->kernel + " " + best_->cache;
      row.best_exact_microseconds = best_->microseconds->median;
    }
    // The best of the peers is known only after the last of them.
    if (row.engine == "torch") {
      row.best_exact.clear();
      row.best_exact_microseconds.reset();
    }
    listener_.row(row);
  }

  const AttentionWorkload& workload_;
  const Shape& shape_;
  const TorchRuntime& torch_;
  const ColdTimer& timer_;
  const Listener& listener_;
  std::vector<int32_t> lengths_;
  std::vector<int32_t> budgets_;
  TorchBatch batch_;
  Row empty_row_;
  std::vector<Layout> layouts_;
  std::unique_ptr<OwnLaunch> exact_;
  std::optional<Row> best_;
  int failures_ = 0;
};

}  // namespace

int run_attention_bench(const AttentionWorkload& workload, const char* allot_version,
                        const Listener& listener) {
  const TorchRuntime torch;
  const ColdTimer timer(torch.stream(), {workload.warmups, workload.runs, workload.flush});
  Machine machine = machine_of(torch, allot_version);
  machine.read_bytes_per_second = timer.read_bandwidth();
  listener.start(machine, {.dtype = std::string(kernels::name(workload.dtype)),
                           .score_deviation = workload.score_deviation,
                           .flushed_bytes = ColdTimer::kFlushedBytes,
                           .flush = workload.flush,
                           .warmups = workload.warmups,
                           .runs = workload.runs});
  int failures = 0;
  for (const Shape& shape : workload.shapes) {
    failures += ShapeRun(workload, shape, torch, timer, listener).run();
  }
  return failures;
}

}  // namespace allot::bench::attention
