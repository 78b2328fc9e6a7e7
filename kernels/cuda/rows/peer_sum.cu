// Every thread has eight bytes. A line of 16 bytes carries them as two words of 64 bits, each with half of
// the numbers and the number of the sum as its mark: words are written and read whole, so what has the mark
// has the numbers, and no fence stands between the two (the protocol that NCCL calls LL).
//
// A block has places of its own in the mailboxes and counts its sums by itself. There are two sets of places,
// for odd and even sums: whoever has the numbers of a sum from all ranks knows that all have finished the sum
// before, and so have read what is overwritten in the next one.
#include "kernels/cuda/rows/cluster.cuh"
#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/row_vectors.cuh"
#include "kernels/cuda/rows/validate_rows.h"
#include "kernels/peer_sum_cuda.h"

namespace allot::kernels {
namespace cuda {
namespace {

constexpr int64_t kChunk = 8;  // bytes of numbers in a line
constexpr int kThreads = 256;
constexpr int64_t most_blocks(int32_t ranks) {
  return most_peer_sum_bytes(ranks) / kChunk / kThreads;
}

struct Line {
  uint64_t words[2];
};

template <int kRanks>
struct Mailbox {
  static constexpr int64_t kPlaces = most_blocks(kRanks) * kThreads;  // of a rank's lines in a set
  static_assert(2 * kRanks * kPlaces * sizeof(Line) + most_blocks(kRanks) * sizeof(uint32_t) <=
                kPeerMailboxBytes);
  void* memory;

  // The thread's line of a sum that comes from a rank.
  __device__ Line* line(uint32_t sum, int32_t from) const {
    return static_cast<Line*>(memory) + (int64_t{sum % 2} * kRanks + from) * kPlaces +
           int64_t{blockIdx.x} * kThreads + threadIdx.x;
  }
  // Of the block's last sum.
  __device__ uint32_t* number() const {
    return reinterpret_cast<uint32_t*>(static_cast<Line*>(memory) + 2 * kRanks * kPlaces) + blockIdx.x;
  }
};

__device__ __forceinline__ void send(Line* to, uint2 numbers, uint32_t mark) {
  const uint64_t marked = uint64_t{mark} << 32;
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1,%2};" ::"l"(to), "l"(marked | numbers.x),
               "l"(marked | numbers.y)
               : "memory");
}

// Whether the line has arrived, and with it its numbers.
__device__ __forceinline__ bool receive(const Line* from, uint32_t mark, uint2& numbers) {
  uint64_t first, second;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0,%1}, [%2];"
               : "=l"(first), "=l"(second)
               : "l"(from)
               : "memory");
  numbers = make_uint2(static_cast<uint32_t>(first), static_cast<uint32_t>(second));
  return static_cast<uint32_t>(first >> 32) == mark && static_cast<uint32_t>(second >> 32) == mark;
}

__device__ __forceinline__ bool is_stopped(const uint32_t* stop) {
  uint32_t word;
  asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(word) : "l"(stop) : "memory");
  return word != 0;
}

template <class T>
inline constexpr int kChunkElements = kChunk / static_cast<int>(sizeof(T));

template <class T>
__device__ __forceinline__ void unpack_chunk(uint2 chunk, float (&x)[kChunkElements<T>]) {
  if constexpr (sizeof(T) == 4) {
    x[0] = __uint_as_float(chunk.x);
    x[1] = __uint_as_float(chunk.y);
  } else {
    const float2 first = unpack<T>(chunk.x), second = unpack<T>(chunk.y);
    x[0] = first.x;
    x[1] = first.y;
    x[2] = second.x;
    x[3] = second.y;
  }
}

template <class T>
__device__ __forceinline__ uint2 load_chunk(const void* elements, int64_t first) {
  return *reinterpret_cast<const uint2*>(static_cast<const T*>(elements) + first);
}

template <class T>
__device__ __forceinline__ void store_chunk(void* elements, int64_t first,
                                            const float (&x)[kChunkElements<T>]) {
  uint2 chunk;
  if constexpr (sizeof(T) == 4) {
    chunk = make_uint2(__float_as_uint(x[0]), __float_as_uint(x[1]));
  } else {
    chunk = make_uint2(pack<T>(x[0], x[1]), pack<T>(x[2], x[3]));
  }
  *reinterpret_cast<uint2*>(static_cast<T*>(elements) + first) = chunk;
}

// Sums a chunk, which goes to all ranks, and rounds it. Threads without one leave it out.
template <class T, int kRanks>
__device__ __forceinline__ void sum_over_ranks(const PeerSumParams& p, uint32_t number, uint2 chunk,
                                               float (&sum)[kChunkElements<T>]) {
  constexpr uint32_t kPollsBetweenLooks = 1 << 12;  // at what the host says, which is far away
  // Each begins with another neighbour.
#pragma unroll
  for (int d = 1; d < kRanks; ++d)
    send(Mailbox<kRanks>{p.mailboxes[(p.rank + d) % kRanks]}.line(number, p.rank), chunk, number);
  const Mailbox<kRanks> own{p.mailboxes[p.rank]};
  uint2 of_ranks[kRanks];
  for (uint32_t polls = 1;; ++polls) {
    bool all = true;
#pragma unroll
    for (int32_t r = 0; r < kRanks; ++r) {
      // The rank's own place stays empty.
      uint2 received;
      const bool here = receive(own.line(number, r), number, received);
      all &= here || r == p.rank;
      of_ranks[r] = r == p.rank ? chunk : received;
    }
    if (all || (polls % kPollsBetweenLooks == 0 && is_stopped(p.stop))) break;
  }
#pragma unroll
  for (int j = 0; j < kChunkElements<T>; ++j) sum[j] = 0;
#pragma unroll
  for (int32_t r = 0; r < kRanks; ++r) {
    float x[kChunkElements<T>];
    unpack_chunk<T>(of_ranks[r], x);
#pragma unroll
    for (int j = 0; j < kChunkElements<T>; ++j) sum[j] += x[j];
  }
  round_elements<T>(sum);
}

template <class T, int kRanks>
__global__ void __launch_bounds__(kThreads) peer_sum(const __grid_constant__ PeerSumParams p) {
  begin_overlapped();
  uint32_t* const last_number = Mailbox<kRanks>{p.mailboxes[p.rank]}.number();
  const uint32_t number = *last_number + 1;
  const int64_t element = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kChunkElements<T>;
  if (element < p.count) {
    float sum[kChunkElements<T>];
    sum_over_ranks<T, kRanks>(p, number, load_chunk<T>(p.data, element), sum);
    store_chunk<T>(p.data, element, sum);
  }
  __syncthreads();
  if (threadIdx.x == 0) *last_number = number;
}

constexpr uint32_t kMostRowBlocks = 8;  // of a cluster, on every device that has any

// The blocks of a cluster have a row, a thread a chunk of it.
template <class T, int kRanks>
__global__ void __launch_bounds__(kThreads)
    peer_sum_norm(const __grid_constant__ PeerSumParams p, const __grid_constant__ RmsNormParams norm) {
  __shared__ float warp_squares[kThreads / 32];
  __shared__ float block_squares[kMostRowBlocks];  // of the row's blocks, which these write
  let_dependents_start();
  const uint32_t blocks = cluster_blocks();
  cluster_sync();  // nobody writes to a block that has not begun
  wait_for_predecessor();
  uint32_t* const last_number = Mailbox<kRanks>{p.mailboxes[p.rank]}.number();
  const uint32_t number = *last_number + 1;
  const auto place = static_cast<int32_t>((cluster_rank() * kThreads + threadIdx.x) * kChunkElements<T>);
  const int64_t element = int64_t{blockIdx.x / blocks} * norm.width + place;
  float x[kChunkElements<T>] = {}, weight[kChunkElements<T>];
  if (place < norm.width) {
    const uint2 input = load_chunk<T>(norm.input, element);
    const uint2 residual = load_chunk<T>(norm.residual, element);
    unpack_chunk<T>(load_chunk<T>(norm.weight, place), weight);
    sum_over_ranks<T, kRanks>(p, number, input, x);
    float before[kChunkElements<T>];
    unpack_chunk<T>(residual, before);
#pragma unroll
    for (int j = 0; j < kChunkElements<T>; ++j) x[j] += before[j];
    round_elements<T>(x);
    store_chunk<T>(norm.residual, element, x);
  }
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kChunkElements<T>; ++j) squares = fmaf(x[j], x[j], squares);
  squares = sum_of_lanes(squares, 32);
  if (threadIdx.x % 32 == 0) warp_squares[threadIdx.x / 32] = squares;
  __syncthreads();
  if (threadIdx.x == 0) *last_number = number;
  if (threadIdx.x < blocks) {
    float sum = 0;
#pragma unroll
    for (const float of_warp : warp_squares) sum += of_warp;
    *of_block(&block_squares[cluster_rank()], threadIdx.x) = sum;
  }
  cluster_sync();
  if (place >= norm.width) return;
  float sum = 0;
  for (uint32_t block = 0; block < blocks; ++block) sum += block_squares[block];
  const float factor = 1 / sqrtf(sum / static_cast<float>(norm.width) + norm.epsilon);
#pragma unroll
  for (int j = 0; j < kChunkElements<T>; ++j) x[j] = x[j] * factor * weight[j];
  store_chunk<T>(norm.out, element, x);
}

int64_t blocks_of_row(const RmsNormParams& norm) {
  const int64_t chunks = norm.width * size_of(norm.dtype) / kChunk;
  return (chunks + kThreads - 1) / kThreads;
}

// Calls launch.template operator()<kRanks>().
template <class Launch>
void for_ranks(int32_t ranks, const Launch& launch) {
  if (ranks == 2) return launch.template operator()<2>();
  if (ranks == 4) return launch.template operator()<4>();
  launch.template operator()<8>();
}

bool has_kernel(int32_t ranks) {
  return ranks == 2 || ranks == 4 || ranks == 8;
}

}  // namespace
}  // namespace cuda

bool peer_sum_takes(int32_t ranks, int64_t count, DType dtype) {
  const int64_t bytes = count * size_of(dtype);
  return cuda::has_kernel(ranks) && count > 0 && bytes <= most_peer_sum_bytes(ranks) &&
         bytes % cuda::kChunk == 0;
}

void peer_sum_cuda(const PeerSumParams& p, const DeviceLimits& limits, CudaStream stream) {
  cuda::check(p);
  const int64_t chunks = p.count * size_of(p.dtype) / cuda::kChunk;
  const cuda::RowGrid grid = {.rows = static_cast<uint32_t>((chunks + cuda::kThreads - 1) / cuda::kThreads),
                              .threads = cuda::kThreads};
  cuda::for_element(p.dtype, false, [&]<class T, int N>() {
    cuda::for_ranks(p.ranks, [&]<int kRanks>() {
      cuda::launch_overlapped(cuda::peer_sum<T, kRanks>, grid, limits, stream, p);
    });
  });
}

bool peer_sum_norm_takes(int32_t ranks, const RmsNormParams& norm, const DeviceLimits& limits) {
  const int64_t of_row = cuda::blocks_of_row(norm);
  return cuda::has_kernel(ranks) && limits.compute_capability >= 90 && norm.rows > 0 && !norm.int8_grid &&
         norm.residual != nullptr && norm.width * size_of(norm.dtype) % cuda::kChunk == 0 &&
         of_row <= cuda::kMostRowBlocks && norm.rows * of_row <= cuda::most_blocks(ranks);
}

void peer_sum_norm_cuda(const PeerSumParams& sum, const RmsNormParams& norm, const DeviceLimits& limits,
                        CudaStream stream) {
  cuda::check(sum, norm, limits);
  const auto of_row = static_cast<uint32_t>(cuda::blocks_of_row(norm));
  const cuda::RowGrid grid = {
      .rows = static_cast<uint32_t>(norm.rows) * of_row, .threads = cuda::kThreads, .cluster = of_row};
  cuda::for_element(norm.dtype, false, [&]<class T, int N>() {
    cuda::for_ranks(sum.ranks, [&]<int kRanks>() {
      cuda::launch_overlapped(cuda::peer_sum_norm<T, kRanks>, grid, limits, stream, sum, norm);
    });
  });
}

}  // namespace allot::kernels
