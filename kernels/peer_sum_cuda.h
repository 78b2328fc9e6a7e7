// Sums over GPUs that write each other's memory (peer access), for the few numbers of a decode step: one
// kernel on each, which sends its numbers to all others and adds what they send. A library's sum (NCCL) waits
// for everybody several times; here every eight bytes travel with a mark that says that they are there, so a
// sum takes one way to a neighbour and nothing else.
#pragma once

#include <cstdint>

#include "kernels/attention_cuda.h"
#include "kernels/estimator.h"
#include "kernels/rows.h"

namespace allot::kernels {

inline constexpr int32_t kMostPeers = 8;

// A rank is a GPU, or a stream of one GPU. All ranks call with the same `count`, in the same order.
struct PeerSumParams {
  int32_t rank = 0;
  int32_t ranks = 0;  // see peer_sum_takes
  int64_t count = 0;
  DType dtype = DType::kBFloat16;
  void* data = nullptr;  // [count] this rank's numbers, replaced by the sums; aligned to 8 bytes
  // Of each rank, kPeerMailboxBytes in its memory, which the kernels of all ranks may write; aligned to 256
  // bytes, zeros before the first sum.
  void* mailboxes[kMostPeers] = {};
  // A word in memory that host and GPU share. Where it is not 0, a kernel no longer waits for other ranks,
  // and leaves numbers that mean nothing.
  const uint32_t* stop = nullptr;
};

// Of numbers: a rank sends them to each of the others, and so the more often the more there are.
constexpr int64_t most_peer_sum_bytes(int32_t ranks) {
  return (int64_t{1} << 20) / ranks;
}
// What is sent travels as twice its bytes, from every rank, and is kept while the next sum may be under way.
// Behind it lie the numbers of sums.
inline constexpr int64_t kPeerMailboxBytes = (int64_t{4} << 20) + 1024;

// Whether there is a kernel for so many numbers on so many ranks: 2, 4 or 8 of these, and whole eights of at
// most most_peer_sum_bytes().
bool peer_sum_takes(int32_t ranks, int64_t count, DType dtype);

// Queues the sum: float32 sums in the order of the ranks, rounded once, so all ranks get the same bits. May
// be captured in a graph; starts while its predecessor ends, as the row operations do (rows_cuda.h). A rank
// whose call is missing leaves the others waiting until `stop`. Throws InvalidArgument for what
// peer_sum_takes refuses, a rank that is none, or a pointer that is null or not aligned; CudaError when the
// launch is refused.
void peer_sum_cuda(const PeerSumParams& params, const DeviceLimits& limits, CudaStream stream);

// Whether there is a kernel that sums rows of so many numbers and norms the sums: where their elements would
// be summed and `width` is a whole number of eight bytes, of at most 16 KiB; clusters are needed, so compute
// capability 9.0.
bool peer_sum_norm_takes(int32_t ranks, const RmsNormParams& norm, const DeviceLimits& limits);

// peer_sum_cuda of norm.input, then rms_norm_cuda, which has a residual: in one kernel, so that nobody waits
// for sums to be written and read again. The sums themselves, rounded once, are not written; residual and out
// are as of the two, but for the order of the sum of squares. `sum` has no data and its count is 0. Throws
// InvalidArgument as the two do, and where peer_sum_norm_takes refuses.
void peer_sum_norm_cuda(const PeerSumParams& sum, const RmsNormParams& norm, const DeviceLimits& limits,
                        CudaStream stream);

}  // namespace allot::kernels
