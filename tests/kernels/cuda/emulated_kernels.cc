#include "emulation.h"
// Kernels of the same names, compiled by nvcc, are linked with this.
#define cuda emulated_cuda
#include <spdlog/fmt/fmt.h>

#include "base/error.h"
#include "emulated_kernels.h"
#include "kernels/cuda/exact_decode_kernel.cuh"
#include "kernels/cuda/pool_kernel.cuh"
#include "kernels/cuda/short_decode_table.cuh"
#include "kernels/cuda/split_values.cuh"
#include "kernels/methods/value_kernels.cuh"

namespace allot::kernels::testing {
namespace {

using cuda::Args;
using cuda::ValueKernel;

ValueKernel kernel_of(const EmulatedLaunch& launch) {
  if (static_cast<const Args*>(launch.args)->p.split.low != nullptr) {
    const auto workers = static_cast<cuda::Workers>(launch.workers);
    return launch.dtype == DType::kFloat16
               ? cuda::split_value_kernel_of<__half>(launch.estimator, launch.head_dim, workers)
               : cuda::split_value_kernel_of<__nv_bfloat16>(launch.estimator, launch.head_dim, workers);
  }
  const bool half = launch.dtype == DType::kFloat16;
  if (half && launch.head_dim == 64)
    return cuda::value_kernel_of<__half, 64>(launch.estimator, static_cast<cuda::Workers>(launch.workers));
  if (half && launch.head_dim == 96)
    return cuda::value_kernel_of<__half, 96>(launch.estimator, static_cast<cuda::Workers>(launch.workers));
  if (!half && launch.head_dim == 64)
    return cuda::value_kernel_of<__nv_bfloat16, 64>(launch.estimator,
                                                    static_cast<cuda::Workers>(launch.workers));
  throw InvalidArgument(
      fmt::format("no value kernel of head_dim {} is compiled for the host", launch.head_dim));
}

template <template <class, int, int> class Keys, class T, int kHeadDim>
void (*exact_decode_kernel_of(int column_tiles))(Args) {
  return column_tiles == 1 ? cuda::exact_decode_kernel<Keys<T, kHeadDim, 1>>
                           : cuda::exact_decode_kernel<Keys<T, kHeadDim, 2>>;
}

void run(void (*kernel)(Args), const Args& args, const emulation::Index& grid, int threads,
         int64_t shared_bytes, bool cluster = false) {
  emulation::Blocks::grid = grid;
  const unsigned together = cluster ? grid.y : 1;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; y += together) {
      for (unsigned x = 0; x < grid.x; ++x)
        emulation::Blocks::run(static_cast<int>(together), {x, y, z}, threads, shared_bytes,
                               [&] { kernel(args); });
    }
  }
}

}  // namespace

void run_emulated_values(const EmulatedLaunch& launch) {
  const ValueKernel kernel = kernel_of(launch);
  const auto grid =
      cuda::value_grid(kernel, launch.num_q_heads, launch.num_kv_heads,
                       kernel.clusters() ? launch.cluster_blocks : launch.parts, launch.queries);
  run(kernel.function, *static_cast<const Args*>(launch.args), {grid.rows, grid.parts, grid.queries},
      kernel.threads,
      kernel.shared_bytes(launch.row_tiles, launch.num_q_heads / launch.num_kv_heads, launch.cluster_blocks),
      kernel.clusters());
}

void run_emulated_exact_decode(const EmulatedLaunch& launch) {
  using cuda::ExactKeys, cuda::ExactSplitKeys;
  void (*kernel)(Args) = nullptr;
  const int tiles = launch.exact_column_tiles;
  const bool half = launch.dtype == DType::kFloat16;
  if (attends_exactly_by_planes(static_cast<const Args*>(launch.args)->p)) {
    if (launch.head_dim == 64)
      kernel = half ? exact_decode_kernel_of<ExactSplitKeys, __half, 64>(tiles)
                    : exact_decode_kernel_of<ExactSplitKeys, __nv_bfloat16, 64>(tiles);
    if (half && launch.head_dim == 128) kernel = exact_decode_kernel_of<ExactSplitKeys, __half, 128>(tiles);
  } else {
    if (half && launch.head_dim == 64) kernel = exact_decode_kernel_of<ExactKeys, __half, 64>(tiles);
    if (half && launch.head_dim == 96) kernel = exact_decode_kernel_of<ExactKeys, __half, 96>(tiles);
    if (!half && launch.head_dim == 64) kernel = exact_decode_kernel_of<ExactKeys, __nv_bfloat16, 64>(tiles);
  }
  if (kernel == nullptr) {
    throw InvalidArgument(
        fmt::format("no exact decode kernel of head_dim {} is compiled for the host", launch.head_dim));
  }
  run(kernel, *static_cast<const Args*>(launch.args), {3, 1, 1}, launch.exact_threads,
      launch.exact_shared_bytes);
}

void run_emulated_short_decode(const EmulatedLaunch& launch) {
  cuda::ShortDecodeKernel kernel;
  if (launch.dtype == DType::kFloat16 && launch.head_dim == 64)
    kernel = cuda::short_decode_kernel_of<__half, 64>(launch.estimator);
  if (launch.dtype == DType::kFloat16 && launch.head_dim == 96)
    kernel = cuda::short_decode_kernel_of<__half, 96>(launch.estimator);
  if (launch.dtype == DType::kBFloat16 && launch.head_dim == 64)
    kernel = cuda::short_decode_kernel_of<__nv_bfloat16, 64>(launch.estimator);
  if (kernel.function == nullptr) {
    throw InvalidArgument(
        fmt::format("no kernel for short rows of head_dim {} is compiled for the host", launch.head_dim));
  }
  run(kernel.function, *static_cast<const Args*>(launch.args), {1, 1, 1}, launch.short_threads,
      launch.short_shared_bytes);
}

namespace {

void length_order_kernel(Args args) {
  ALLOT_DYNAMIC_SHARED(16, shared);
  auto* const order = reinterpret_cast<int32_t*>(args.weights);
  const bool own = cuda::LengthOrder::write(args, reinterpret_cast<int32_t*>(shared), order) == nullptr;
  if (threadIdx.x == 0 && own) order[0] = -1;
}

}  // namespace

std::vector<int32_t> emulated_length_order(const std::vector<int32_t>& lengths, int32_t max_length,
                                           int threads) {
  std::vector<int32_t> order(lengths.size(), -2);
  Args args{};
  args.p.batch = static_cast<int64_t>(lengths.size());
  args.p.lengths = lengths.data();
  args.max_length = max_length;
  args.weights = reinterpret_cast<uint16_t*>(order.data());
  run(length_order_kernel, args, {1, 1, 1}, threads, int64_t{4} * cuda::LengthOrder::shared_numbers(threads));
  if (order[0] == -1) order.clear();
  return order;
}

void run_emulated_pools(const EmulatedLaunch& launch) {
  const cuda::PoolKernel kernel = cuda::make_pool_kernel();
  run(kernel.function, *static_cast<const Args*>(launch.args), {static_cast<unsigned>(launch.queries), 1, 1},
      kernel.threads, kernel.shared_bytes(launch.num_q_heads, launch.num_kv_heads));
}

}  // namespace allot::kernels::testing
