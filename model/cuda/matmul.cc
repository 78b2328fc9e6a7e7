#include "model/cuda/matmul.h"

#include <cuda_runtime.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <compare>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/error.h"
#include "kernels/fp8_cuda.h"
#include "kernels/gated_product_cuda.h"
#include "kernels/matvec_cuda.h"
#include "kernels/rows_cuda.h"
#include "model/cuda/cublaslt.h"
#include "model/cuda/device_memory.h"

namespace allot::model::cuda {
namespace {

using kernels::DType;

constexpr int64_t kMostElements = std::numeric_limits<int32_t>::max();
constexpr int32_t kFp8Features = 16;  // in_features of 8-bit weights is a multiple of these
constexpr int kMostCandidates = 32;
// Rows from which the gated kernel is chosen without measuring: see Matmul::tune.
constexpr int64_t kFewestGatedRows = 512;
constexpr int kWarmups = 2;
constexpr int kTimedGraphs = 3;
constexpr int64_t kFewestRunsOfGraph = 5;
constexpr int64_t kMostCopies = 32;
constexpr int64_t kCachesOfCopies = 4;
// Part of the time of a kernel of few rows: an algorithm of the library is preferred only when it takes
// less. See Matmul::tune.
constexpr float kLibraryPreferredBelow = 0.95f;

using TimedEvent = Owned<cudaEvent_t, cudaEventDestroy>;
using Graph = Owned<cudaGraph_t, cudaGraphDestroy>;
using GraphExec = Owned<cudaGraphExec_t, cudaGraphExecDestroy>;

std::string description(const MatmulParams& p) {
  return fmt::format("the {}product of input [{}, {}] with {}weights [{}, {}]{}, {}, out_stride {}",
                     p.activated != nullptr ? "gated " : "", p.rows, p.in_features,
                     p.weight_scales != nullptr ? "8-bit " : "", p.out_features, p.in_features,
                     p.bias != nullptr ? " and a bias" : "", kernels::name(p.dtype), p.out_stride);
}

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return CUDA_R_32F;
    case DType::kBFloat16:
      return CUDA_R_16BF;
    case DType::kFloat16:
      return CUDA_R_16F;
  }
  throw InvalidArgument(
      fmt::format("matmul on CUDA: dtype is {}; expected one of kernels::DType", static_cast<int>(dtype)));
}

TimedEvent make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "cudaEventCreate");
  return TimedEvent(event);
}

// Products that share an algorithm.
struct Key {
  int64_t rows, out_stride;
  int32_t out_features, in_features;
  DType dtype;
  bool bias, fp8, gated;
  auto operator<=>(const Key&) const = default;
};

struct Matvec {};  // the kernel of few rows
struct Gated {};   // the kernel that multiplies and activates
using Algorithm = std::variant<cublasLtMatmulAlgo_t, Matvec, Gated>;

// Where a product with 8-bit weights gets their scales.
using Fp8Scaling = Matmul::Fp8Scaling;

struct Plan {
  Operation operation;
  Layout weight, input, out;
  Algorithm algorithm;
  Fp8Scaling scaling = Fp8Scaling::kInProduct;  // of the library's algorithms with 8-bit weights
  bool tuned = false;
};

int64_t weight_size(const MatmulParams& p) {
  return p.weight_scales != nullptr ? 1 : size_of(p.dtype);
}

// Whether the kernel of few rows computes the product in one launch.
bool is_of_few_rows(const MatmulParams& p) {
  return p.weight_scales != nullptr ? kernels::fp8_matvec_supports(p.rows, p.in_features)
                                    : kernels::matvec_supports(p.rows, p.in_features, p.dtype);
}

// The weights of a product and copies of them, to be read in turn.
class ColdWeights {
 public:
  ColdWeights(const MatmulParams& params, int64_t cache_bytes, cudaStream_t stream)
      : weight_(static_cast<const std::byte*>(params.weight)) {
    const int64_t bytes = int64_t{params.out_features} * params.in_features * weight_size(params);
    stride_ = (bytes + 255) / 256 * 256;
    count_ = std::clamp((kCachesOfCopies * cache_bytes + bytes - 1) / bytes, int64_t{1}, kMostCopies);
    copies_ = DeviceBuffer((count_ - 1) * stride_);
    for (int64_t i = 0; i + 1 < count_; ++i) {
      check(cudaMemcpyAsync(copies_.data() + i * stride_, weight_, static_cast<size_t>(bytes),
                            cudaMemcpyDeviceToDevice, stream),
            "copy the weights");
    }
    // The copies are next read on another stream.
    check(cudaStreamSynchronize(stream), "copy the weights");
  }

  int64_t count() const { return count_; }
  // Accepts any `i`; count() successive ones give different copies.
  const void* at(int64_t i) const {
    const int64_t turn = i % count_;
    return turn == 0 ? weight_ : copies_.data() + (turn - 1) * stride_;
  }

 private:
  const std::byte* weight_;
  int64_t stride_ = 0, count_ = 1;
  DeviceBuffer copies_;
};

}  // namespace

void validate_matmul(const MatmulParams& p) {
  const auto at_least_one = [](std::string_view what, int64_t value) {
    if (value < 1 || value > kMostElements) {
      throw InvalidArgument(
          fmt::format("matmul on CUDA: {} is {}; expected 1 to {}", what, value, kMostElements));
    }
  };
  at_least_one("rows", p.rows);
  at_least_one("out_features", p.out_features);
  at_least_one("in_features", p.in_features);
  if (p.out_stride < p.out_features || p.out_stride > kMostElements) {
    throw InvalidArgument(fmt::format("matmul on CUDA: out_stride is {}; expected out_features, {}, to {}",
                                      p.out_stride, p.out_features, kMostElements));
  }
  (void)data_type(p.dtype);
  const auto aligned = [](std::string_view what, const void* address) {
    if (reinterpret_cast<uintptr_t>(address) % kMatmulAlignment == 0) return;
    throw InvalidArgument(fmt::format("matmul on CUDA: {} is at {}; expected a multiple of {} bytes", what,
                                      address, kMatmulAlignment));
  };
  const auto given = [&](std::string_view what, const void* address) {
    if (address == nullptr) {
      throw InvalidArgument(fmt::format("matmul on CUDA: {} is null; it must point to device memory", what));
    }
    aligned(what, address);
  };
  given("input", p.input);
  given("weight", p.weight);
  given("out", p.out);
  aligned("weight_scales", p.weight_scales);
  aligned("bias", p.bias);
  aligned("activated", p.activated);
  if (p.activated != nullptr && (p.out_features % 2 != 0 || p.out_stride != p.out_features)) {
    throw InvalidArgument(fmt::format(
        "matmul on CUDA: activated is set with out_features {} and out_stride {}; expected an even number, "
        "that of gate and up together, and no gap between rows",
        p.out_features, p.out_stride));
  }
  if (p.weight_scales == nullptr) return;
  if (p.dtype != DType::kBFloat16) {
    throw InvalidArgument(
        fmt::format("matmul on CUDA: dtype is {} with weight_scales; weights of 8 bits need bfloat16",
                    kernels::name(p.dtype)));
  }
  if (p.in_features % kFp8Features != 0) {
    throw InvalidArgument(
        fmt::format("matmul on CUDA: in_features is {} with weight_scales; weights of 8 bits need a multiple "
                    "of {}",
                    p.in_features, kFp8Features));
  }
}

struct Matmul::Impl {
  Candidates candidates;
  Fp8Scaling scaling;
  kernels::DeviceLimits device;
  Library library;
  Preference preference;
  DeviceBuffer workspace;
  int64_t cache_bytes = 0;
  std::map<Key, Plan> plans;
  DeviceBuffer quantized, input_scales;  // of the input of a product with 8-bit weights

  Impl(Candidates from, Fp8Scaling where) : candidates(from), scaling(where) {
    cublasLtHandle_t handle = nullptr;
    check_library(cublasLtCreate(&handle), "set up cuBLASLt");
    library.reset(handle);
    preference = make_preference();
    workspace = DeviceBuffer(kMatmulWorkspaceBytes);
    int ordinal = 0, cache = 0;
    check(cudaGetDevice(&ordinal), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, ordinal),
          "ask for the size of the L2 cache");
    cache_bytes = cache;
    device = kernels::device_limits(ordinal);
  }

  // At most `count` algorithms, and with 16-bit weights at least one, that the library expects to be the
  // fastest, best first.
  std::vector<cublasLtMatmulAlgo_t> of_library(const Plan& plan, const MatmulParams& p, int count) const {
    std::array<cublasLtMatmulHeuristicResult_t, kMostCandidates> results{};
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        library.get(), plan.operation.get(), plan.weight.get(), plan.input.get(), plan.out.get(),
        plan.out.get(), preference.get(), count, results.data(), &found);
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    for (const auto& result : std::span(results).first(static_cast<size_t>(found))) {
      if (result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > size_t{kMatmulWorkspaceBytes})
        continue;
      algorithms.push_back(result.algo);
    }
    if (p.weight_scales != nullptr) return algorithms;
    if (status != CUBLAS_STATUS_SUCCESS || algorithms.empty()) {
      throw CudaError(fmt::format("cuBLASLt {} has no algorithm for {}: {}", cublasLtGetVersion(),
                                  description(p), cublasLtGetStatusName(status)));
    }
    return algorithms;
  }

  Plan& plan_of(const MatmulParams& p) {
    const Key key{.rows = p.rows,
                  .out_stride = p.out_stride,
                  .out_features = p.out_features,
                  .in_features = p.in_features,
                  .dtype = p.dtype,
                  .bias = p.bias != nullptr,
                  .fp8 = p.weight_scales != nullptr,
                  .gated = p.activated != nullptr};
    if (const auto found = plans.find(key); found != plans.end()) return found->second;
    return plans.emplace(key, key.fp8 ? fp8_plan(p) : plan(p)).first->second;
  }

  Plan plan(const MatmulParams& p) const {
    const cudaDataType_t type = data_type(p.dtype);
    Plan plan{.operation = make_operation(p.bias != nullptr),
              .weight = make_layout(type, p.in_features, p.out_features, p.in_features),
              .input = make_layout(type, p.in_features, p.rows, p.in_features),
              .out = make_layout(type, p.out_features, p.rows, p.out_stride),
              .algorithm = {}};
    if (p.rows >= kFewestGatedRows && has_gated_kernel(p)) {
      plan.algorithm = Gated{};
    } else {
      plan.algorithm = of_library(plan, p, 1).front();
    }
    return plan;
  }

  bool has_gated_kernel(const MatmulParams& p) const {
    return candidates == Candidates::kAll && p.activated != nullptr && p.bias == nullptr &&
           p.weight_scales == nullptr &&
           kernels::gated_product_supports(p.out_features / 2, p.in_features, p.dtype, device);
  }

  // How the library scales a product is known by whether it then has an algorithm.
  Plan fp8_plan(const MatmulParams& p) const {
    const bool in_product = kScalesRows && scaling == Fp8Scaling::kInProduct;
    Plan plan = fp8_plan(p, in_product ? Fp8Scaling::kInProduct : Fp8Scaling::kAfterwards);
    std::vector<cublasLtMatmulAlgo_t> algorithms = of_library(plan, p, 1);
    if (algorithms.empty() && in_product) {
      plan = fp8_plan(p, Fp8Scaling::kAfterwards);
      algorithms = of_library(plan, p, 1);
    }
    const bool own_kernel = is_of_few_rows(p) && candidates == Candidates::kAll;
    if (!algorithms.empty() && !own_kernel) plan.algorithm = algorithms.front();
    return plan;
  }

  static Plan fp8_plan(const MatmulParams& p, Fp8Scaling where) {
    const bool in_product = where == Fp8Scaling::kInProduct, bias = in_product && p.bias != nullptr;
    Plan plan{.operation = make_operation(bias),
              .weight = make_layout(CUDA_R_8F_E4M3, p.in_features, p.out_features, p.in_features),
              .input = make_layout(CUDA_R_8F_E4M3, p.in_features, p.rows, p.in_features),
              .out = make_layout(data_type(p.dtype), p.out_features, p.rows, p.out_stride),
              .algorithm = Matvec{},
              .scaling = where};
    if (bias) {
      set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(data_type(p.dtype)));
    }
    // Sums stay in the tensor cores: their 14 bits lose a tenth of what the factors' 4 have lost, at most.
    set(plan.operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
    if (in_product) set_row_scales(plan.operation);
    return plan;
  }

  // Returns the library's status; own kernels throw where they are refused.
  cublasStatus_t queue(const Plan& plan, const Algorithm& algorithm, const MatmulParams& p,
                       const void* weight, cudaStream_t stream) const {
    if (std::holds_alternative<Gated>(algorithm)) {
      kernels::gated_product_cuda({.rows = p.rows,
                                   .width = p.out_features / 2,
                                   .in_features = p.in_features,
                                   .dtype = p.dtype,
                                   .activation = p.activation,
                                   .input = p.input,
                                   .weight = weight,
                                   .out = p.activated},
                                  device, stream);
      return CUBLAS_STATUS_SUCCESS;
    }
    const cublasStatus_t status = queue_product(plan, algorithm, p, weight, stream);
    if (p.activated == nullptr || status != CUBLAS_STATUS_SUCCESS) return status;
    kernels::activate_and_multiply_cuda({.rows = p.rows,
                                         .width = p.out_features / 2,
                                         .dtype = p.dtype,
                                         .activation = p.activation,
                                         .gate_up = p.out,
                                         .out = p.activated},
                                        device, stream);
    return status;
  }

  cublasStatus_t queue_product(const Plan& plan, const Algorithm& algorithm, const MatmulParams& p,
                               const void* weight, cudaStream_t stream) const {
    if (std::holds_alternative<Matvec>(algorithm)) {
      queue_few_rows(p, weight, stream);
      return CUBLAS_STATUS_SUCCESS;
    }
    const void* input = p.input;
    if (p.weight_scales != nullptr) {
      if (!p.quantized) quantize(p, stream);
      input = quantized.data();
    }
    const bool scaled_afterwards = p.weight_scales != nullptr && plan.scaling == Fp8Scaling::kAfterwards;
    if (p.bias != nullptr && !scaled_afterwards) {
      set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    }
    if (p.weight_scales != nullptr && !scaled_afterwards) {
      set(plan.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.weight_scales);
      set(plan.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, input_scales.as<const float>());
    }
    const float one = 1, zero = 0;
    const cublasStatus_t status = cublasLtMatmul(
        library.get(), plan.operation.get(), &one, weight, plan.weight.get(), input, plan.input.get(), &zero,
        p.out, plan.out.get(), p.out, plan.out.get(), &std::get<cublasLtMatmulAlgo_t>(algorithm),
        workspace.data(), static_cast<size_t>(workspace.size()), stream);
    if (scaled_afterwards && status == CUBLAS_STATUS_SUCCESS) {
      kernels::scale_product_cuda({.rows = p.rows,
                                   .out_features = p.out_features,
                                   .input_scales = input_scales.as<const float>(),
                                   .weight_scales = p.weight_scales,
                                   .bias = p.bias,
                                   .out = p.out,
                                   .out_stride = p.out_stride},
                                  device, stream);
    }
    return status;
  }

  bool has_room(const MatmulParams& p) const {
    return quantized.size() >= p.rows * p.in_features &&
           input_scales.size() >= p.rows * int64_t{sizeof(float)};
  }

  bool takes_quantized(const Plan& plan, const MatmulParams& p) const {
    return p.weight_scales != nullptr && !std::holds_alternative<Matvec>(plan.algorithm) && has_room(p);
  }

  void quantize(const MatmulParams& p, cudaStream_t stream) const {
    const int64_t bytes = p.rows * p.in_features;
    if (!has_room(p)) {
      throw InvalidArgument(fmt::format(
          "matmul on CUDA: the input [{}, {}] takes {} bytes when it is quantised, but there is room for "
          "{} and {} rows; call reserve_fp8()",
          p.rows, p.in_features, bytes, quantized.size(), input_scales.size() / int64_t{sizeof(float)}));
    }
    kernels::quantize_rows_cuda({.rows = p.rows,
                                 .width = p.in_features,
                                 .dtype = p.dtype,
                                 .input = p.input,
                                 .out = quantized.as<uint8_t>(),
                                 .scales = input_scales.as<float>()},
                                device, stream);
  }

  void queue_few_rows(const MatmulParams& p, const void* weight, cudaStream_t stream) const {
    if (p.weight_scales == nullptr) {
      kernels::matvec_cuda({.rows = p.rows,
                            .out_features = p.out_features,
                            .in_features = p.in_features,
                            .dtype = p.dtype,
                            .input = p.input,
                            .weight = weight,
                            .bias = p.bias,
                            .out = p.out,
                            .out_stride = p.out_stride},
                           device, stream);
      return;
    }
    const int64_t size = size_of(p.dtype);
    for (int64_t first = 0; first < p.rows; first += kernels::kMaxFp8MatvecRows) {
      kernels::fp8_matvec_cuda(
          {.rows = std::min(p.rows - first, kernels::kMaxFp8MatvecRows),
           .out_features = p.out_features,
           .in_features = p.in_features,
           .input = static_cast<const std::byte*>(p.input) + first * p.in_features * size,
           .weight = static_cast<const uint8_t*>(weight),
           .weight_scales = p.weight_scales,
           .bias = p.bias,
           .out = static_cast<std::byte*>(p.out) + first * p.out_stride * size,
           .out_stride = p.out_stride},
          device, stream);
    }
  }

  // A graph of `runs` products; nothing when the library refuses the algorithm or it cannot be captured.
  std::optional<GraphExec> captured(const Plan& plan, const Algorithm& algorithm, const MatmulParams& p,
                                    const ColdWeights& weights, int64_t runs) const {
    const Stream stream;
    check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "begin a capture");
    bool queued = true;
    for (int64_t i = 0; queued && i < runs; ++i) {
      queued = queue(plan, algorithm, p, weights.at(i), stream.get()) == CUBLAS_STATUS_SUCCESS;
    }
    cudaGraph_t ended = nullptr;
    queued = cudaStreamEndCapture(stream.get(), &ended) == cudaSuccess && queued;
    const Graph graph(ended);
    if (!queued) {
      (void)cudaGetLastError();  // the next call would report it again
      return std::nullopt;
    }
    cudaGraphExec_t executable = nullptr;
    check(cudaGraphInstantiate(&executable, graph.get(), 0), "instantiate a CUDA graph");
    return GraphExec(executable);
  }

  // Milliseconds of one product with `algorithm`; nothing when it does not run.
  std::optional<float> time(const Plan& plan, const Algorithm& algorithm, const MatmulParams& p,
                            const ColdWeights& weights, cudaStream_t stream) const {
    for (int i = 0; i < kWarmups; ++i) {
      if (queue(plan, algorithm, p, weights.at(i), stream) != CUBLAS_STATUS_SUCCESS) {
        (void)cudaGetLastError();  // the next call would report it again
        return std::nullopt;
      }
    }
    check(cudaStreamSynchronize(stream), "run a candidate for a product");
    const int64_t runs = std::max(weights.count(), kFewestRunsOfGraph);
    const std::optional<GraphExec> graph = captured(plan, algorithm, p, weights, runs);
    if (!graph) return std::nullopt;
    const TimedEvent start = make_event(), end = make_event();
    float least = std::numeric_limits<float>::infinity();
    for (int i = 0; i <= kTimedGraphs; ++i) {
      check(cudaEventRecord(start.get(), stream), "cudaEventRecord");
      check(cudaGraphLaunch(graph->get(), stream), "cudaGraphLaunch");
      check(cudaEventRecord(end.get(), stream), "cudaEventRecord");
      check(cudaEventSynchronize(end.get()), "run candidates for a product");
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, start.get(), end.get()), "cudaEventElapsedTime");
      if (i > 0) least = std::min(least, milliseconds);  // the first launch uploads the graph
    }
    return least / static_cast<float>(runs);
  }
};

Matmul::Matmul(Candidates candidates, Fp8Scaling scaling)
    : impl_(std::make_unique<Impl>(candidates, scaling)) {}

Matmul::~Matmul() = default;

void Matmul::reserve_fp8(int64_t rows, int32_t in_features) {
  impl_->quantized = DeviceBuffer(rows * in_features);
  impl_->input_scales = DeviceBuffer(rows * int64_t{sizeof(float)});
}

void Matmul::tune(const MatmulParams& params, cudaStream_t stream) {
  validate_matmul(params);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &capture), "cudaStreamIsCapturing");
  if (capture != cudaStreamCaptureStatusNone) {
    throw InvalidArgument(
        "matmul on CUDA: the stream is being captured, where nothing can be measured; call "
        "tune() before the capture begins");
  }
  Plan& plan = impl_->plan_of(params);
  if (plan.tuned) return;
  if (std::holds_alternative<Gated>(plan.algorithm)) {  // not measured, only loaded
    run(params, stream);
    check(cudaStreamSynchronize(stream), "run the gated product");
    plan.tuned = true;
    return;
  }
  const ColdWeights weights(params, impl_->cache_bytes, stream);
  float least = std::numeric_limits<float>::infinity();
  for (const cublasLtMatmulAlgo_t& algorithm : impl_->of_library(plan, params, kMostCandidates)) {
    const std::optional<float> milliseconds = impl_->time(plan, algorithm, params, weights, stream);
    if (!milliseconds || *milliseconds >= least) continue;
    least = *milliseconds;
    plan.algorithm = algorithm;
    plan.tuned = true;
  }
  if (!plan.tuned && params.weight_scales != nullptr) {  // 16 rows at a time, measured or not
    plan.algorithm = Matvec{};
    plan.tuned = true;
    return;
  }
  if (!plan.tuned) {
    throw CudaError(fmt::format("cuBLASLt {} runs none of its algorithms for {}", cublasLtGetVersion(),
                                description(params)));
  }
  if (impl_->candidates == Candidates::kLibrary) return;
  if (is_of_few_rows(params)) {
    const std::optional<float> milliseconds = impl_->time(plan, Matvec{}, params, weights, stream);
    if (milliseconds && least >= kLibraryPreferredBelow * *milliseconds) plan.algorithm = Matvec{};
  } else if (impl_->has_gated_kernel(params)) {
    const std::optional<float> milliseconds = impl_->time(plan, Gated{}, params, weights, stream);
    if (milliseconds && *milliseconds < least) plan.algorithm = Gated{};
  }
}

kernels::QuantizedRows Matmul::quantized_input(const MatmulParams& params) {
  validate_matmul(params);
  if (!impl_->takes_quantized(impl_->plan_of(params), params)) return {};
  return {.elements = impl_->quantized.as<uint8_t>(), .scales = impl_->input_scales.as<float>()};
}

void Matmul::run(const MatmulParams& params, cudaStream_t stream) {
  validate_matmul(params);
  const Plan& plan = impl_->plan_of(params);
  if (params.quantized && !impl_->takes_quantized(plan, params)) {
    throw InvalidArgument(fmt::format(
        "matmul on CUDA: {} takes its input in 16 bits, but `quantized` is set; ask quantized_input() first",
        description(params)));
  }
  const cublasStatus_t status = impl_->queue(plan, plan.algorithm, params, params.weight, stream);
  if (status != CUBLAS_STATUS_SUCCESS) check_library(status, description(params));
}

}  // namespace allot::model::cuda
