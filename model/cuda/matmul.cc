#include "model/cuda/matmul.h"

#include <cublasLt.h>
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
#include "kernels/matvec_cuda.h"
#include "model/cuda/device_memory.h"

namespace allot::model::cuda {
namespace {

using kernels::DType;

constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;
constexpr int64_t kMostElements = std::numeric_limits<int32_t>::max();
constexpr uintptr_t kAlignment = 16;
constexpr int kMostCandidates = 32;
constexpr int kWarmups = 2;
constexpr int kTimedGraphs = 3;
constexpr int64_t kFewestRunsOfGraph = 5;
constexpr int64_t kMostCopies = 32;
constexpr int64_t kCachesOfCopies = 4;
// Part of matvec_cuda's time: an algorithm of the library is preferred only when it takes
// less. See Matmul::tune.
constexpr float kLibraryPreferredBelow = 0.97f;

// A handle of cuBLASLt or of the CUDA runtime, destroyed with its owner.
template <auto kDestroy>
struct Destroy {
  template <class T>
  void operator()(T* handle) const {
    (void)kDestroy(handle);
  }
};
template <class Handle, auto kDestroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<kDestroy>>;

using Library = Owned<cublasLtHandle_t, cublasLtDestroy>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;
using TimedEvent = Owned<cudaEvent_t, cudaEventDestroy>;
using Graph = Owned<cudaGraph_t, cudaGraphDestroy>;
using GraphExec = Owned<cudaGraphExec_t, cudaGraphExecDestroy>;

void check_library(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw CudaError(
      fmt::format("{}: {} ({})", what, cublasLtGetStatusString(status), cublasLtGetStatusName(status)));
}

std::string description(const MatmulParams& p) {
  return fmt::format("the product of input [{}, {}] with weights [{}, {}]{}, {}, out_stride {}", p.rows,
                     p.in_features, p.out_features, p.in_features, p.bias != nullptr ? " and a bias" : "",
                     kernels::name(p.dtype), p.out_stride);
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

template <class T>
void set(const Operation& operation, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check_library(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof(value)),
                "cublasLtMatmulDescSetAttribute");
}

template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  check_library(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
                "cublasLtMatmulPreferenceSetAttribute");
}

Layout make_layout(DType dtype, int64_t rows, int64_t columns, int64_t leading) {
  cublasLtMatrixLayout_t layout = nullptr;
  check_library(cublasLtMatrixLayoutCreate(&layout, data_type(dtype), static_cast<uint64_t>(rows),
                                           static_cast<uint64_t>(columns), leading),
                "cublasLtMatrixLayoutCreate");
  return Layout(layout);
}

// cuBLASLt stores matrices by columns: to it, a row-major array is the transposed matrix. So `out` is a
// matrix D of [out_features, rows], the product of the transposed weights A and of the input B, and the bias
// runs along the rows of D.
Operation make_operation(bool bias) {
  cublasLtMatmulDesc_t descriptor = nullptr;
  check_library(cublasLtMatmulDescCreate(&descriptor, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                "cublasLtMatmulDescCreate");
  Operation operation(descriptor);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  if (bias) {
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    // The choice of algorithms depends on the alignment of this address, which is not read. It is the least
    // alignment that is allowed, so that the choice fits every later bias.
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, kAlignment);
  }
  return operation;
}

Preference make_preference() {
  cublasLtMatmulPreference_t created = nullptr;
  check_library(cublasLtMatmulPreferenceCreate(&created), "cublasLtMatmulPreferenceCreate");
  Preference preference(created);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kWorkspaceBytes));
  // One rounding and a fixed order of every sum; see Matmul.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  for (const auto array :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(preference, array, static_cast<uint32_t>(kAlignment));
  }
  return preference;
}

// Products that share an algorithm.
struct Key {
  int64_t rows, out_stride;
  int32_t out_features, in_features;
  DType dtype;
  bool bias;
  auto operator<=>(const Key&) const = default;
};

struct Matvec {};  // matvec_cuda
using Algorithm = std::variant<cublasLtMatmulAlgo_t, Matvec>;

struct Plan {
  Operation operation;
  Layout weight, input, out;
  Algorithm algorithm;
  bool tuned = false;
};

// The weights of a product and copies of them, to be read in turn.
class ColdWeights {
 public:
  ColdWeights(const MatmulParams& params, int64_t cache_bytes, cudaStream_t stream)
      : weight_(static_cast<const std::byte*>(params.weight)) {
    const int64_t bytes = int64_t{params.out_features} * params.in_features * size_of(params.dtype);
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
    if (reinterpret_cast<uintptr_t>(address) % kAlignment == 0) return;
    throw InvalidArgument(fmt::format("matmul on CUDA: {} is at {}; expected a multiple of {} bytes", what,
                                      address, kAlignment));
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
  aligned("bias", p.bias);
}

struct Matmul::Impl {
  Candidates candidates;
  kernels::DeviceLimits device;
  Library library;
  Preference preference;
  DeviceBuffer workspace;
  int64_t cache_bytes = 0;
  std::map<Key, Plan> plans;

  explicit Impl(Candidates from) : candidates(from) {
    cublasLtHandle_t handle = nullptr;
    check_library(cublasLtCreate(&handle), "set up cuBLASLt");
    library.reset(handle);
    preference = make_preference();
    workspace = DeviceBuffer(kWorkspaceBytes);
    int ordinal = 0, cache = 0;
    check(cudaGetDevice(&ordinal), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, ordinal),
          "ask for the size of the L2 cache");
    cache_bytes = cache;
    device = kernels::device_limits(ordinal);
  }

  // At most `count` algorithms, and at least one, that the library expects to be the fastest, best first.
  std::vector<cublasLtMatmulAlgo_t> of_library(const Plan& plan, const MatmulParams& p, int count) const {
    std::array<cublasLtMatmulHeuristicResult_t, kMostCandidates> results{};
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        library.get(), plan.operation.get(), plan.weight.get(), plan.input.get(), plan.out.get(),
        plan.out.get(), preference.get(), count, results.data(), &found);
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    for (const auto& result : std::span(results).first(static_cast<size_t>(found))) {
      if (result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > size_t{kWorkspaceBytes}) continue;
      algorithms.push_back(result.algo);
    }
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
                  .bias = p.bias != nullptr};
    if (const auto found = plans.find(key); found != plans.end()) return found->second;
    Plan plan{.operation = make_operation(key.bias),
              .weight = make_layout(p.dtype, p.in_features, p.out_features, p.in_features),
              .input = make_layout(p.dtype, p.in_features, p.rows, p.in_features),
              .out = make_layout(p.dtype, p.out_features, p.rows, p.out_stride),
              .algorithm = {}};
    plan.algorithm = of_library(plan, p, 1).front();
    return plans.emplace(key, std::move(plan)).first->second;
  }

  // Returns the library's status; matvec_cuda throws where it is refused.
  cublasStatus_t queue(const Plan& plan, const Algorithm& algorithm, const MatmulParams& p,
                       const void* weight, cudaStream_t stream) const {
    if (std::holds_alternative<Matvec>(algorithm)) {
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
      return CUBLAS_STATUS_SUCCESS;
    }
    if (p.bias != nullptr) set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    const float one = 1, zero = 0;
    return cublasLtMatmul(library.get(), plan.operation.get(), &one, weight, plan.weight.get(), p.input,
                          plan.input.get(), &zero, p.out, plan.out.get(), p.out, plan.out.get(),
                          &std::get<cublasLtMatmulAlgo_t>(algorithm), workspace.data(),
                          static_cast<size_t>(workspace.size()), stream);
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

Matmul::Matmul(Candidates candidates) : impl_(std::make_unique<Impl>(candidates)) {}

Matmul::~Matmul() = default;

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
  const ColdWeights weights(params, impl_->cache_bytes, stream);
  float least = std::numeric_limits<float>::infinity();
  for (const cublasLtMatmulAlgo_t& algorithm : impl_->of_library(plan, params, kMostCandidates)) {
    const std::optional<float> milliseconds = impl_->time(plan, algorithm, params, weights, stream);
    if (!milliseconds || *milliseconds >= least) continue;
    least = *milliseconds;
    plan.algorithm = algorithm;
    plan.tuned = true;
  }
  if (!plan.tuned) {
    throw CudaError(fmt::format("cuBLASLt {} runs none of its algorithms for {}", cublasLtGetVersion(),
                                description(params)));
  }
  if (impl_->candidates == Candidates::kLibrary ||
      !kernels::matvec_supports(params.rows, params.in_features, params.dtype)) {
    return;
  }
  const std::optional<float> milliseconds = impl_->time(plan, Matvec{}, params, weights, stream);
  if (milliseconds && least >= kLibraryPreferredBelow * *milliseconds) plan.algorithm = Matvec{};
}

void Matmul::run(const MatmulParams& params, cudaStream_t stream) {
  validate_matmul(params);
  const Plan& plan = impl_->plan_of(params);
  const cublasStatus_t status = impl_->queue(plan, plan.algorithm, params, params.weight, stream);
  if (status != CUBLAS_STATUS_SUCCESS) check_library(status, description(params));
}

}  // namespace allot::model::cuda
