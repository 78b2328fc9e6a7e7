// Queues the kernels of a launch and reads back the fault record.
#include <cuda_runtime.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <set>
#include <utility>

#include "base/error.h"
#include "kernels/attention_cuda.h"
#include "kernels/attention_fault_cuda.h"
#include "kernels/cuda/args.h"
#include "kernels/cuda/code_capability.h"
#include "kernels/cuda/plan.h"

namespace allot::kernels {
namespace {

void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) {
    throw CudaError(fmt::format("{}: {} ({})", call, cudaGetErrorString(status), cudaGetErrorName(status)));
  }
}

void check_workspace(const CudaWorkspace& workspace, int64_t needed) {
  if (workspace.data == nullptr ||
      reinterpret_cast<uintptr_t>(workspace.data) % cuda::kWorkspaceAlignment != 0) {
    throw InvalidArgument(
        fmt::format("attention on CUDA: the workspace is at address {}; expected device memory "
                    "aligned to {} bytes",
                    workspace.data, cuda::kWorkspaceAlignment));
  }
  if (static_cast<int64_t>(workspace.bytes) < needed) {
    throw InvalidArgument(
        fmt::format("attention on CUDA: the workspace has {} bytes, but the launch needs {}; "
                    "cuda_workspace_bytes() with the same bounds says how many",
                    workspace.bytes, needed));
  }
}

struct Grid {
  dim3 blocks;
  int threads;
  int64_t shared_bytes;
  bool overlaps;         // may start while its predecessor ends
  bool cluster = false;  // of the blocks of each y
};

// Allows a kernel all the shared memory that its device gives a block. Done once per kernel and device: if
// each launch set its own limit, another thread could lower it before this one's launch.
void prepare(const void* function, const DeviceLimits& limits) {
  static std::mutex mutex;
  static std::set<std::pair<const void*, int>> prepared;
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const std::lock_guard lock(mutex);
  if (prepared.contains({function, device})) return;
  cudaFuncAttributes attributes = {};
  check(cudaFuncGetAttributes(&attributes, function), "cudaFuncGetAttributes");
  check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             limits.shared_bytes_per_block - static_cast<int>(attributes.sharedSizeBytes)),
        "cudaFuncSetAttribute");
  // Blocks of both kernels share a multiprocessor only if both ask for the same division of its memory.
  check(cudaFuncSetAttribute(function, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "cudaFuncSetAttribute");
  prepared.emplace(function, device);
}

void launch(void (*kernel)(cuda::Args), const Grid& grid, const cuda::Args& launch_args,
            const DeviceLimits& limits, cudaStream_t stream) {
  const auto* function = reinterpret_cast<const void*>(kernel);
  prepare(function, limits);
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (grid.overlaps) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (grid.cluster) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {.x = 1, .y = grid.blocks.y, .z = 1};
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid.blocks;
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = static_cast<size_t>(grid.shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  cuda::Args args = launch_args;  // the runtime wants them writable
  void* arguments[] = {&args};
  check(cudaLaunchKernelExC(&config, function, arguments), "cudaLaunchKernelExC");
}

// Makes a device the current one of this thread, and the former one again.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    check(cudaSetDevice(device), "cudaSetDevice");
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice() { (void)cudaSetDevice(before_); }

 private:
  int before_ = 0;
};

// The compute capability that the kernels on this device were compiled for, all of them for the same ones:
// one is asked.
int32_t code_capability(int device, int32_t capability) {
  const CurrentDevice current(device);
  cudaFuncAttributes attributes = {};
  const auto* kernel = reinterpret_cast<const void*>(cuda::pool_kernel().function);
  const cudaError_t status = cudaFuncGetAttributes(&attributes, kernel);
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidKernelImage) {
    (void)cudaGetLastError();
    throw CudaError(fmt::format(
        "allot's kernels were not compiled for device {}, whose compute capability is {}.{}; build with "
        "-DALLOT_CUDA_ARCHITECTURES={} ({})",
        device, capability / 10, capability % 10, capability > 90 ? "\"90;ptx\"" : std::to_string(capability),
        cudaGetErrorName(status)));
  }
  check(status, "cudaFuncGetAttributes");
  return attributes.ptxVersion;
}

}  // namespace

DeviceLimits device_limits(int device) {
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (device < 0 || device >= count) {
    throw CudaError(fmt::format("device {} does not exist; this machine has {}", device, count));
  }
  const auto attribute = [&](cudaDeviceAttr name) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, name, device), "cudaDeviceGetAttribute");
    return value;
  };
  const int32_t capability =
      10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
  return {.compute_capability = cuda::usable_capability(capability, code_capability(device, capability)),
          .multiprocessors = attribute(cudaDevAttrMultiProcessorCount),
          .shared_bytes_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)};
}

void reset_cuda_workspace(CudaWorkspace workspace, CudaStream stream) {
  check_workspace(workspace, cuda::kHeaderBytes);
  check(cudaMemsetAsync(workspace.data, 0, cuda::kHeaderBytes, stream), "cudaMemsetAsync");
}

void attend_cuda(const AttentionParams& p, const LaunchBounds& bounds, const DeviceLimits& limits,
                 CudaWorkspace workspace, CudaStream stream) {
  validate_cuda(p, bounds, limits);
  if (bounds.num_queries == 0) return;
  const cuda::Plan plan = cuda::make_plan(p, bounds, limits);
  check_workspace(workspace, plan.workspace_bytes);
  cuda::Args args = cuda::make_args(p, bounds, plan, workspace.data);
  const bool can_overlap = limits.compute_capability >= 90;
  const auto launch_scores = [&](ScoreStage stage, const cuda::ScorePlan& score, const cuda::Args& score_args,
                                 bool overlaps) {
    const cuda::ScoreKernel kernel = cuda::score_kernel(p, stage, score.column_tiles, cuda::score_use(plan));
    launch(kernel.function,
           {.blocks = dim3(static_cast<unsigned>(score.blocks)),
            .threads = score.threads,
            .shared_bytes = score.shared_bytes,
            .overlaps = overlaps && can_overlap},
           score_args, limits, stream);
  };
  for (int32_t pass = 0; pass < plan.passes; ++pass) {
    args.first_query = pass * plan.pass_queries;
    args.pass_queries =
        static_cast<int32_t>(std::min<int64_t>(plan.pass_queries, bounds.num_queries - args.first_query));
    if (args.row_table != nullptr) {
      check(cudaMemsetAsync(args.row_table, 0xFF, static_cast<size_t>(plan.row_table_bytes), stream),
            "cudaMemsetAsync");
    }
    const auto launch_exact_decode = [&] {
      const cuda::ScorePlan& exact = plan.exact_decode;
      launch(cuda::exact_decode_kernel(p, exact.column_tiles).function,
             {.blocks = dim3(static_cast<unsigned>(exact.blocks)),
              .threads = exact.threads,
              .shared_bytes = exact.shared_bytes,
              // Behind others it waits for all their kernels: they use the same counters.
              .overlaps = plan.exact_alone && can_overlap},
             args, limits, stream);
    };
    if (plan.exact_alone) {
      launch_exact_decode();
      continue;
    }
    if (plan.short_decode.warps > 0) {
      const cuda::ScorePlan& rows = plan.short_decode;
      launch(cuda::short_decode_kernel(p).function,
             {.blocks = dim3(static_cast<unsigned>(rows.blocks)),
              .threads = rows.threads,
              .shared_bytes = rows.shared_bytes,
              .overlaps = can_overlap},
             args, limits, stream);
      if (plan.exact_decode.warps > 0) launch_exact_decode();
      continue;
    }
    launch_scores(p.method.score_stage, plan.score, args, true);
    if (plan.dense_score.warps > 0) {
      // It runs after the first kernel has ended, and the value kernels after both: each waits for the end of
      // the one before it.
      cuda::Args dense = args;
      dense.scored = cuda::Scored::kExact;
      dense.piece_tiles = plan.dense_score.piece_tiles;
      dense.full_pieces = cuda::full_pieces(plan, plan.dense_score);
      launch_scores(ScoreStage::kExact, plan.dense_score, dense, false);
    }
    if (args.pools != nullptr) {
      const cuda::PoolKernel pool = cuda::pool_kernel();
      launch(pool.function,
             {.blocks = dim3(static_cast<unsigned>(args.pass_queries)),
              .threads = pool.threads,
              .shared_bytes = pool.shared_bytes(p.num_q_heads, p.num_kv_heads),
              .overlaps = can_overlap},
             args, limits, stream);
    }
    const auto launch_values = [&](const cuda::ValueKernel& value, bool overlaps) {
      const cuda::ValueGrid grid =
          cuda::value_grid(value, p.num_q_heads, p.num_kv_heads, plan.row_blocks(value), args.pass_queries);
      launch(value.function,
             {.blocks = dim3(grid.rows, grid.parts, grid.queries),
              .threads = value.threads,
              .shared_bytes =
                  value.shared_bytes(plan.row_tiles, p.num_q_heads / p.num_kv_heads, plan.cluster_blocks),
              .overlaps = overlaps && can_overlap,
              .cluster = value.clusters()},
             args, limits, stream);
    };
    launch_values(cuda::value_kernel(p, plan.workers), true);
    if (row_of(p.method.estimator).samples && plan.dense_left) {
      launch_values(cuda::dense_kernel(p.dtype, p.head_dim, plan.workers), false);
    }
    if (plan.exact_decode.warps > 0) launch_exact_decode();
  }
}

void copy_fault_cuda(CudaWorkspace workspace, AttentionFault* fault, CudaStream stream) {
  static_assert(sizeof(AttentionFault) == sizeof(cuda::Fault) &&
                offsetof(AttentionFault, limit) == offsetof(cuda::Fault, limit));
  check_workspace(workspace, cuda::kHeaderBytes);
  check(cudaMemcpyAsync(fault, workspace.data, sizeof(*fault), cudaMemcpyDeviceToHost, stream),
        "cudaMemcpyAsync");
}

void check_cuda(CudaWorkspace workspace, CudaStream stream) {
  AttentionFault fault;
  copy_fault_cuda(workspace, &fault, stream);
  check(cudaStreamSynchronize(stream), "attention kernels");
  if (fault.code == cuda::kFaultNone) return;
  reset_cuda_workspace(workspace, stream);
  throw_fault(fault);
}

void throw_fault(const AttentionFault& fault) {
  const auto refuse = [](const std::string& text) { throw InvalidArgument("attention on CUDA: " + text); };
  switch (fault.code) {
    case cuda::kFaultNone:
      return;
    case cuda::kFaultLength:
      refuse(fmt::format(
          "sequence {} has length {}; expected at least its number of queries, at most max_length = {} "
          "and what its page table holds",
          fault.sequence, fault.value, fault.limit));
      break;
    case cuda::kFaultBudget:
      refuse(fmt::format(
          "sequence {} has sample budget {}; expected 0 to max_budget = {}, or {} for exact attention "
          "where any_dense is set",
          fault.sequence, fault.value, fault.limit, kDenseBudget));
      break;
    case cuda::kFaultTileBudget:
      refuse(fmt::format(
          "the estimator needs a sample in every tile: sequence {} has {} tiles of {} keys, but a "
          "budget of {}; raise the budget, enlarge the tile or use sys",
          fault.sequence, fault.limit, fault.tile, fault.value));
      break;
    case cuda::kFaultPage:
      refuse(fmt::format("sequence {} names page {}; expected 0 to {}", fault.sequence, fault.value,
                         fault.limit - 1));
      break;
    default:
      refuse(fmt::format("sequence {} has {} queries; expected 0 to max_queries = {}", fault.sequence,
                         fault.value, fault.limit));
  }
}

}  // namespace allot::kernels
