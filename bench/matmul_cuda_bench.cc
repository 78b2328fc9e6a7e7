// Times the matrix products of Llama-3.1-8B and Qwen2-7B in bfloat16 on the current GPU, with cuBLASLt's
// first choice of algorithm, with the one that was fastest when Matmul::tune measured the library's, and for
// few rows with matvec_cuda: the time of one product in a CUDA graph of many in a row, as in a captured
// decode step. The products of a graph read different copies of the weights, together at least eight times as
// large as the L2 cache (of 8 bits four times), so that weights come from memory; inputs stay in the cache,
// where the operation before leaves them.
//
// A product is bound by the larger of the bytes of its weights over the memory's bandwidth and its
// 2 rows out_features in_features operations over the speed of the tensor cores: the columns GB/s and TFLOP/s
// of the library's fastest, and GB/s of matvec_cuda. The columns of 8 bits are those of the same product with
// weights of a byte: the library's fastest, the time in which the input is quantised included, and
// fp8_matvec_cuda.
//
// A second table has gate and up of an MLP with the activation behind them: the library's fastest algorithm
// and activate_and_multiply_cuda against gated_product_cuda, in graphs of at least 256, since
// products of many rows are bound by power.
//
//     matmul_cuda_bench [FILTER]     only lines that contain FILTER
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <random>
#include <string>
#include <vector>

#include "bench/attention/stream_timer.h"
#include "bench/output.h"
#include "kernels/bfloat16.h"
#include "kernels/fp8_cuda.h"
#include "kernels/gated_product_cuda.h"
#include "kernels/matvec_cuda.h"
#include "model/cuda/device_memory.h"
#include "model/cuda/matmul.h"

namespace allot::bench {
namespace {

using model::cuda::check;
using model::cuda::DeviceBuffer;
using model::cuda::Matmul;
using model::cuda::MatmulParams;

constexpr int64_t kMostRows = 1536;
constexpr int64_t kFewestRunsOfGraph = 8;
constexpr int kWarmups = 2;
constexpr int kTimedGraphs = 9;
constexpr int64_t kRunsUnderLoad = 256;

struct Product {
  std::string name;
  int32_t out_features, in_features;
  bool bias;
  bool gated = false;  // gate and up of an MLP
};

std::vector<Product> products() {
  return {
      {"Llama-3.1-8B qkv", 6144, 4096, false},
      {"Llama-3.1-8B attention out", 4096, 4096, false},
      {"Llama-3.1-8B gate_up", 28672, 4096, false, true},
      {"Llama-3.1-8B down", 4096, 14336, false},
      {"Llama-3.1-8B head", 128256, 4096, false},
      {"Qwen2-7B qkv", 4608, 3584, true},
      {"Qwen2-7B attention out", 3584, 3584, false},
      {"Qwen2-7B gate_up", 37888, 3584, false, true},
      {"Qwen2-7B down", 3584, 18944, false},
      {"Qwen2-7B head", 152064, 3584, false},
  };
}

// Normal bfloat16 values; a few million different ones, repeated.
void fill(const DeviceBuffer& buffer, float deviation) {
  constexpr int64_t kDifferent = int64_t{1} << 21;
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<uint16_t> values(kDifferent);
  for (uint16_t& value : values) value = kernels::bfloat16_from_float(normal(random));
  const int64_t most = kDifferent * int64_t{sizeof(uint16_t)};
  for (int64_t at = 0; at < buffer.size(); at += most) {
    check(cudaMemcpy(buffer.data() + at, values.data(),
                     static_cast<size_t>(std::min(most, buffer.size() - at)), cudaMemcpyHostToDevice),
          "copy random numbers to the device");
  }
  check(cudaStreamSynchronize(nullptr), "copy random numbers to the device");
}

int64_t weight_bytes(const Product& product) {
  return int64_t{product.out_features} * product.in_features * int64_t{sizeof(uint16_t)};
}

std::string range(const WarmTimes& times) {
  return span_text(times.least, times.most, 2);
}

class Bench {
 public:
  explicit Bench(std::string filter) : filter_(std::move(filter)) {
    int64_t weights = 0, inputs = 0, outs = 0, biases = 0;
    int device = 0, cache = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device), "ask for the size of the L2 cache");
    copies_bytes_ = 8 * int64_t{cache};  // four of 8 bits
    for (const Product& product : products()) {
      weights = std::max(weights, copies_of(product) * weight_bytes(product));
      inputs = std::max(inputs, 2 * kMostRows * product.in_features);
      outs = std::max(outs, 2 * kMostRows * product.out_features);
      biases = std::max(biases, 2 * int64_t{product.out_features});
    }
    weights_ = DeviceBuffer(weights);
    inputs_ = DeviceBuffer(inputs);
    outs_ = DeviceBuffer(outs);
    activated_ = DeviceBuffer(outs / 2);
    biases_ = DeviceBuffer(biases);
    fill(weights_, 0.02f);
    fill(inputs_, 1);
    fill(biases_, 1);
    limits_ = kernels::device_limits(device);
    quantize_weights();
    fp8_.reserve_fp8(kMostRows, 18944);
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    fmt::print("{}, L2 cache {} MB, cuBLASLt {}, bfloat16; microseconds are medians of {} graphs\n",
               properties.name, cache / 1'000'000, cublasLtGetVersion(), kTimedGraphs);
  }

  void print_head() const { fmt::print("{}", table_.head()); }
  void print_gated_head() const { fmt::print("\n{}", gated_table_.head()); }

  // Gate and up with their activation.
  void compare_gated(const Product& product, int64_t rows) {
    const std::string name = fmt::format("{} x {}", product.name, rows);
    const int32_t width = product.out_features / 2;
    if (name.find(filter_) == std::string::npos ||
        !kernels::gated_product_supports(width, product.in_features, kernels::DType::kBFloat16, limits_))
      return;
    MatmulParams p = params_of(product, rows);
    p.activated = activated_.data();
    tuned_.tune(p, timer_.stream());
    const WarmTimes library = time(
        p, product, [&](const MatmulParams& turn) { tuned_.run(turn, timer_.stream()); }, kRunsUnderLoad);
    const WarmTimes own = time(
        p, product,
        [&](const MatmulParams& turn) {
          kernels::gated_product_cuda({.rows = turn.rows,
                                       .width = width,
                                       .in_features = turn.in_features,
                                       .dtype = turn.dtype,
                                       .input = turn.input,
                                       .weight = turn.weight,
                                       .out = turn.activated},
                                      limits_, timer_.stream());
        },
        kRunsUnderLoad);
    const double operations = static_cast<double>(weight_bytes(product)) * static_cast<double>(rows);
    fmt::print("{}", gated_table_.line({name, library.median, range(library), own.median, range(own),
                                        library.median / own.median, operations / own.median / 1e6}));
    std::fflush(stdout);
  }

  void compare(const Product& product, int64_t rows) {
    const std::string name = fmt::format("{} x {}", product.name, rows);
    if (name.find(filter_) == std::string::npos) return;
    const MatmulParams p = params_of(product, rows);
    const auto run_with = [&](Matmul& matmul) {
      return time(p, product, [&](const MatmulParams& turn) { matmul.run(turn, timer_.stream()); });
    };
    const WarmTimes first = run_with(first_choice_);
    const auto start = std::chrono::steady_clock::now();
    tuned_.tune(p, timer_.stream());
    const std::chrono::duration<double, std::milli> tuning = std::chrono::steady_clock::now() - start;
    const WarmTimes tuned = run_with(tuned_);
    const auto bytes = static_cast<double>(weight_bytes(product));
    std::vector<Cell> cells = {name,
                               first.median,
                               tuned.median,
                               range(tuned),
                               first.median / tuned.median,
                               tuning.count(),
                               bytes / tuned.median / 1e3,
                               bytes * static_cast<double>(rows) / tuned.median / 1e6};
    if (kernels::matvec_supports(rows, product.in_features, p.dtype)) {
      const WarmTimes own = time(p, product, [&](const MatmulParams& turn) { run_matvec(turn); });
      cells.insert(cells.end(), {own.median, range(own), bytes / own.median / 1e3});
    } else {
      cells.insert(cells.end(), {"-", "-", "-"});
    }
    const WarmTimes fp8 = time_fp8(p, product);
    cells.insert(cells.end(), {fp8.median, range(fp8), bytes / 2 / fp8.median / 1e3});
    if (kernels::fp8_matvec_supports(rows, product.in_features)) {
      const WarmTimes own = time(p, product, [&](const MatmulParams& turn) { run_fp8_matvec(turn); });
      cells.insert(cells.end(), {own.median, range(own), bytes / 2 / own.median / 1e3});
    }
    fmt::print("{}", table_.line(cells));
    std::fflush(stdout);
  }

 private:
  int64_t copies_of(const Product& product) const {
    return (copies_bytes_ + weight_bytes(product) - 1) / weight_bytes(product);
  }

  MatmulParams params_of(const Product& product, int64_t rows) const {
    return {.rows = rows,
            .out_features = product.out_features,
            .in_features = product.in_features,
            .dtype = kernels::DType::kBFloat16,
            .input = inputs_.data(),
            .weight = weights_.data(),
            .bias = product.bias ? biases_.data() : nullptr,
            .out = outs_.data(),
            .out_stride = product.out_features};
  }

  void run_matvec(const MatmulParams& p) {
    kernels::matvec_cuda({.rows = p.rows,
                          .out_features = p.out_features,
                          .in_features = p.in_features,
                          .dtype = p.dtype,
                          .input = p.input,
                          .weight = p.weight,
                          .bias = p.bias,
                          .out = p.out,
                          .out_stride = p.out_stride},
                         limits_, timer_.stream());
  }

  // As many rows of 8 bits as the weights hold, of any width.
  void quantize_weights() {
    constexpr int32_t kWidth = 4096;
    const int64_t rows = weights_.size() / 2 / kWidth;
    weights8_ = DeviceBuffer(rows * kWidth);
    scales_ = DeviceBuffer(rows * int64_t{sizeof(float)});
    kernels::quantize_rows_cuda({.rows = rows,
                                 .width = kWidth,
                                 .dtype = kernels::DType::kBFloat16,
                                 .input = weights_.data(),
                                 .out = weights8_.as<uint8_t>(),
                                 .scales = scales_.as<float>()},
                                limits_, timer_.stream());
    check(cudaStreamSynchronize(timer_.stream()), "quantise the weights");
  }

  // The 8-bit weights that stand where those of `p` do.
  const std::byte* of_8_bits(const MatmulParams& p) const {
    return weights8_.data() + (static_cast<const std::byte*>(p.weight) - weights_.data()) / 2;
  }

  // Of the library's fastest algorithm. Copies of the weights are as many as of 16 bits, so half as large.
  WarmTimes time_fp8(MatmulParams p, const Product& product) {
    p.weight_scales = scales_.as<const float>();
    MatmulParams tuned = p;
    tuned.weight = of_8_bits(p);
    fp8_.tune(tuned, timer_.stream());
    return time(p, product, [&](MatmulParams turn) {
      turn.weight = of_8_bits(turn);
      fp8_.run(turn, timer_.stream());
    });
  }

  void run_fp8_matvec(const MatmulParams& p) {
    kernels::fp8_matvec_cuda({.rows = p.rows,
                              .out_features = p.out_features,
                              .in_features = p.in_features,
                              .input = p.input,
                              .weight = reinterpret_cast<const uint8_t*>(of_8_bits(p)),
                              .weight_scales = scales_.as<const float>(),
                              .bias = p.bias,
                              .out = p.out,
                              .out_stride = p.out_stride},
                             limits_, timer_.stream());
  }

  // run(params) queues a product on the timer's stream.
  template <class Run>
  WarmTimes time(MatmulParams p, const Product& product, const Run& run,
                 int64_t fewest_runs = kFewestRunsOfGraph) {
    const int64_t copies = copies_of(product);
    const int64_t runs = std::max(copies, fewest_runs);
    return timer_.time_in_graph("products", runs, [&](int64_t turn) {
      p.weight = weights_.data() + turn % copies * weight_bytes(product);
      run(p);
    });
  }

  const Table table_{{{"product x rows", -32},
                      {"first us", 10, 2},
                      {"tuned us", 10, 2},
                      {"least..most", 18},
                      {"ratio", 7, 3},
                      {"tuning ms", 10},
                      {"GB/s", 9},
                      {"TFLOP/s", 9, 1},
                      {"matvec us", 10, 2},
                      {"least..most", 18},
                      {"GB/s", 9},
                      {"8 bits us", 10, 2},
                      {"least..most", 18},
                      {"GB/s", 9},
                      {"matvec us", 10, 2},
                      {"least..most", 18},
                      {"GB/s", 9}}};
  const Table gated_table_{{{"gate and up, activated x rows", -32},
                            {"library us", 10, 2},
                            {"least..most", 18},
                            {"gated us", 10, 2},
                            {"least..most", 18},
                            {"ratio", 7, 3},
                            {"TFLOP/s", 9, 1}}};
  std::string filter_;
  int64_t copies_bytes_ = 0;
  DeviceBuffer weights_, inputs_, outs_, activated_, biases_;
  DeviceBuffer weights8_, scales_;
  StreamTimer timer_{kWarmups, kTimedGraphs};
  kernels::DeviceLimits limits_;
  Matmul first_choice_;
  Matmul tuned_{Matmul::Candidates::kLibrary};
  Matmul fp8_{Matmul::Candidates::kLibrary};
};

void run(const std::string& filter) {
  Bench bench(filter);
  bench.print_head();
  for (const Product& product : products()) {
    for (const int64_t rows : {int64_t{1}, int64_t{2}, int64_t{4}, int64_t{6}, int64_t{16}, int64_t{64},
                               int64_t{256}, int64_t{512}, int64_t{640}, int64_t{1024}, kMostRows}) {
      bench.compare(product, rows);
    }
  }
  bench.print_gated_head();
  for (const Product& product : products()) {
    if (!product.gated) continue;
    for (const int64_t rows :
         {int64_t{64}, int64_t{128}, int64_t{256}, int64_t{512}, int64_t{1024}, kMostRows})
      bench.compare_gated(product, rows);
  }
}

}  // namespace
}  // namespace allot::bench

int main(int argc, char** argv) {
  try {
    allot::bench::run(argc > 1 ? argv[1] : "");
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "matmul_cuda_bench: {}\n", error.what());
    return 1;
  }
}
