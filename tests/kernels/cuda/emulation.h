// CUDA C++ on the host: the threads of a block are coroutines of one host thread, which change places where
// they wait for each other, so that the source of a kernel runs, and can be tested, without a GPU. Warps are
// whole in every collective, as the value kernels have them; blocks run one after the other, those of a
// cluster together. Variables in __shared__ are the same for all blocks, so kernels of clusters have none.
// Include this before a header of kernels/cuda, with the macro `cuda` defined as the name of another
// namespace: the kernels that nvcc compiled have the same names.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <vector>

namespace emulation {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

// The blocks that run, one or those of a cluster.
class Blocks {
 public:
  // Runs body() once for each of `threads` threads, a multiple of 32, of each of `blocks` blocks, which have
  // `shared_bytes` of dynamic shared memory each and follow `first` along y.
  static void run(int blocks, const Index& first, int threads, int64_t shared_bytes,
                  const std::function<void()>& body);

  static Index thread_index() {
    return {static_cast<unsigned>(running_->current_ % running_->block_threads_)};
  }
  static Index block_index() {
    return {running_->first_.x, running_->first_.y + static_cast<unsigned>(running_->rank()),
            running_->first_.z};
  }
  static char* shared_memory() { return running_->shared_[static_cast<size_t>(running_->rank())]; }
  static char* shared_memory_of(int rank) { return running_->shared_[static_cast<size_t>(rank)]; }
  static Index block_size() { return {static_cast<unsigned>(running_->block_threads_), 1, 1}; }
  static Index grid;

  // Waits for all threads of the block that have not ended.
  static void sync_threads() {
    running_->wait_for(running_->of_blocks_[static_cast<size_t>(running_->rank())]);
  }
  // The same of `threads` threads of the block, always the same ones.
  static void sync_some(int threads) {
    Barrier& barrier = running_->of_some_[static_cast<size_t>(running_->rank())];
    barrier.members = threads;
    running_->wait_for(barrier);
  }
  // Lets others go on.
  static void yield() { running_->change_place(); }
  // The same of the cluster.
  static void sync_cluster() { running_->wait_for(running_->all_); }
  // Gives every lane what all lanes of its warp bring.
  template <class T>
  static const T* exchange(T value);

 private:
  struct Barrier {
    int members = 0;
    int arrived = 0;
    uint64_t generation = 0;
  };
  struct Warp {
    Barrier barrier;
    alignas(16) unsigned char values[2][32 * sizeof(uint64_t)] = {};
  };
  struct Thread {
    ucontext_t first_context;  // where it starts
    jmp_buf place;             // where it goes on: without the system call that a change of contexts takes
    bool started = false;
    bool ended = false;
    const Barrier* barrier = nullptr;  // that it waits for, to pass this generation
    uint64_t generation = 0;
    int turn = 0;  // which values of the warp the next exchange uses: a lane can be one ahead, but not two
    bool can_run() const { return !ended && (barrier == nullptr || barrier->generation != generation); }
  };

  int rank() const { return current_ / block_threads_; }
  void wait_for(Barrier& barrier);
  void leave(Barrier& barrier);
  void change_place();
  static void start();

  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<Barrier> of_blocks_;
  std::vector<Barrier> of_some_;
  Barrier all_;
  Index first_;
  int block_threads_ = 0;
  int current_ = 0;
  int left_ = 0;
  std::vector<char*> shared_;
  const std::function<void()>* body_ = nullptr;
  jmp_buf outside_;
  static Blocks* running_;
};

template <class T>
const T* Blocks::exchange(T value) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  Blocks& block = *running_;
  Thread& thread = block.threads_[static_cast<size_t>(block.current_)];
  Warp& warp = block.warps_[static_cast<size_t>(block.current_ / 32)];
  unsigned char* const values = warp.values[thread.turn];
  thread.turn ^= 1;
  std::memcpy(values + static_cast<size_t>(block.current_ % 32) * sizeof(T), &value, sizeof(T));
  block.wait_for(warp.barrier);
  return reinterpret_cast<const T*>(values);
}

inline int lane() {
  return static_cast<int>(Blocks::thread_index().x % 32);
}

}  // namespace emulation

#undef __device__
#undef __host__
#undef __global__
#undef __shared__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __grid_constant__
#undef __align__
#define __device__
#define __host__
#define __global__
#define __shared__ static
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define ALLOT_DYNAMIC_SHARED(alignment, name) char* const name = ::emulation::Blocks::shared_memory()
#define threadIdx (::emulation::Blocks::thread_index())
#define blockIdx (::emulation::Blocks::block_index())
#define gridDim (::emulation::Blocks::grid)
#define blockDim (::emulation::Blocks::block_size())

using std::isfinite;
using std::isinf;

template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}

inline void __syncthreads() {
  emulation::Blocks::sync_threads();
}
inline void __syncwarp() {
  emulation::Blocks::exchange(0);
}
inline void emulated_wait_for_cluster() {
  emulation::Blocks::sync_cluster();
}
template <class T>
T* emulated_in_block_of_cluster(T* own, int rank) {
  const auto offset = reinterpret_cast<char*>(own) - emulation::Blocks::shared_memory();
  return reinterpret_cast<T*>(emulation::Blocks::shared_memory_of(rank) + offset);
}
int __syncthreads_and(int value);

inline uint32_t emulated_shared_address(const void* shared) {
  return static_cast<uint32_t>(static_cast<const char*>(shared) - emulation::Blocks::shared_memory());
}
inline void* emulated_shared_memory(uint32_t address) {
  return emulation::Blocks::shared_memory() + address;
}
// Reads a byte there, so that a sanitizer sees addresses that are none of the launch's.
inline void prefetch(const void* global) {
  (void)*static_cast<const volatile char*>(global);
}
inline void emulated_meet_some(int threads) {
  emulation::Blocks::sync_some(threads);
}

// Barriers in shared memory: how many arrivals each time takes, how many are missing, times passed.
struct EmulatedBarrier {
  uint16_t count;
  uint16_t missing;
  uint32_t times;
};
static_assert(sizeof(EmulatedBarrier) == sizeof(uint64_t));
inline void emulated_init_barrier(void* barrier, int count) {
  *static_cast<EmulatedBarrier*>(barrier) = {static_cast<uint16_t>(count), static_cast<uint16_t>(count), 0};
}
inline void emulated_arrive_at(void* barrier) {
  auto& state = *static_cast<EmulatedBarrier*>(barrier);
  if (--state.missing > 0) return;
  state.missing = state.count;
  ++state.times;
}
// As on the device, only whether an even or an odd number of times has passed is looked at.
inline void emulated_wait_at(const void* barrier, int time) {
  const auto& state = *static_cast<const EmulatedBarrier*>(barrier);
  while (state.times % 2 == static_cast<uint32_t>(time) % 2) emulation::Blocks::yield();
}

// A product of 16 rows and 8 columns, whose operands have kPerWord elements a word: element(word, k) is one
// of them. kernels/cuda/device.cuh says who holds what.
template <int kPerWord, class Sum, class Element>
void emulated_product(Sum (&acc)[4], const uint4& a, uint32_t b0, uint32_t b1, const Element& element) {
  struct Pair {
    uint32_t first, second;
  };
  Pair rows[2][32], columns[32];
  const auto gather = [](Pair(&all)[32], uint32_t first, uint32_t second) {
    std::memcpy(all, emulation::Blocks::exchange(Pair{first, second}), sizeof(all));
  };
  gather(rows[0], a.x, a.z);
  gather(rows[1], a.y, a.w);
  gather(columns, b0, b1);
  constexpr int kHalf = 4 * kPerWord;
  const auto of = [&](const Pair& pair, int k) {
    return element(k < kHalf ? pair.first : pair.second, k % kPerWord);
  };
  const int g = emulation::lane() / 4;
  const int t = emulation::lane() % 4;
  for (int i = 0; i < 4; ++i) {
    const int column = 2 * t + i % 2;
    for (int k = 0; k < 2 * kHalf; ++k)
      acc[i] += of(rows[i / 2][4 * g + k % kHalf / kPerWord], k) *
                of(columns[4 * column + k % kHalf / kPerWord], k);
  }
}

// multiply_accumulate of that header.
template <class T>
void emulated_multiply_accumulate(float (&acc)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  emulated_product<2>(acc, a, b0, b1, [](uint32_t word, int k) {
    return static_cast<float>(std::bit_cast<T>(static_cast<uint16_t>(word >> 16 * k)));
  });
}

// multiply_accumulate_bytes of the same header.
inline void emulated_multiply_accumulate_bytes(int32_t (&acc)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  emulated_product<4>(acc, a, b0, b1,
                      [](uint32_t word, int k) { return int32_t{static_cast<int8_t>(word >> 8 * k)}; });
}

template <class T>
T __shfl_sync(unsigned, T value, int from, int width = 32) {
  const int lane = emulation::lane();
  return emulation::Blocks::exchange(value)[lane / width * width + from % width];
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  const int lane = emulation::lane();
  return emulation::Blocks::exchange(value)[lane ^ mask];
}
template <class T>
T __shfl_up_sync(unsigned, T value, int distance, int width = 32) {
  const int lane = emulation::lane();
  return emulation::Blocks::exchange(value)[lane % width < distance ? lane : lane - distance];
}
template <class T>
T __shfl_down_sync(unsigned, T value, int distance, int width = 32) {
  const int lane = emulation::lane();
  return emulation::Blocks::exchange(value)[lane % width + distance >= width ? lane : lane + distance];
}
inline uint32_t __ballot_sync(unsigned, bool value) {
  const int* const values = emulation::Blocks::exchange(value ? 1 : 0);
  uint32_t bits = 0;
  for (int i = 0; i < 32; ++i) bits |= values[i] != 0 ? 1u << i : 0u;
  return bits;
}
inline uint32_t __reduce_add_sync(unsigned, uint32_t value) {
  const uint32_t* const values = emulation::Blocks::exchange(value);
  uint32_t sum = 0;
  for (int i = 0; i < 32; ++i) sum += values[i];
  return sum;
}
inline uint32_t __reduce_min_sync(unsigned, uint32_t value) {
  const uint32_t* const values = emulation::Blocks::exchange(value);
  return *std::min_element(values, values + 32);
}
inline uint32_t __reduce_max_sync(unsigned, uint32_t value) {
  const uint32_t* const values = emulation::Blocks::exchange(value);
  return *std::max_element(values, values + 32);
}
inline bool __any_sync(unsigned mask, bool value) {
  return __ballot_sync(mask, value) != 0;
}

// The position of the n-th set bit from bit 0 on; all ones where there are fewer.
inline uint32_t __fns(uint32_t bits, uint32_t, int n) {
  for (; n > 1 && bits != 0; --n) bits &= bits - 1;
  return bits == 0 ? 0xFFFFFFFFu : static_cast<uint32_t>(std::countr_zero(bits));
}
inline int __popc(uint32_t bits) {
  return std::popcount(bits);
}
// The position of the lowest set bit, counted from 1; 0 where there is none.
inline int __ffs(int bits) {
  return bits == 0 ? 0 : std::countr_zero(static_cast<uint32_t>(bits)) + 1;
}
inline int __clz(int bits) {
  return std::countl_zero(static_cast<uint32_t>(bits));
}
// The larger of each half, and the lesser of a + b and c, as unsigned integers.
inline uint32_t __vmaxu2(uint32_t a, uint32_t b) {
  return std::max(a & 0xFFFF0000u, b & 0xFFFF0000u) | std::max(a & 0xFFFFu, b & 0xFFFFu);
}
inline uint32_t __viaddmin_u16x2(uint32_t a, uint32_t b, uint32_t c) {
  const uint32_t high = (a & 0xFFFF0000u) + (b & 0xFFFF0000u), low = (a + b) & 0xFFFFu;
  return std::min(high, c & 0xFFFF0000u) | std::min(low, c & 0xFFFFu);
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __log2f(float x) {
  return std::log2(x);
}
inline uint32_t __float_as_uint(float x) {
  return std::bit_cast<uint32_t>(x);
}
inline float __uint_as_float(uint32_t x) {
  return std::bit_cast<float>(x);
}

template <class T>
T atomicAdd(T* target, std::type_identity_t<T> value) {
  const T before = *target;
  *target = before + value;
  return before;
}
inline uint32_t atomicInc(uint32_t* target, uint32_t last) {
  const uint32_t before = *target;
  *target = before >= last ? 0 : before + 1;
  return before;
}
template <class T>
T atomicMin(T* target, std::type_identity_t<T> value) {
  const T before = *target;
  *target = std::min(before, value);
  return before;
}
template <class T>
T atomicMax(T* target, std::type_identity_t<T> value) {
  const T before = *target;
  *target = std::max(before, value);
  return before;
}
template <class T>
T atomicOr(T* target, std::type_identity_t<T> value) {
  const T before = *target;
  *target = before | value;
  return before;
}
template <class T>
T atomicCAS(T* target, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  const T before = *target;
  if (before == expected) *target = value;
  return before;
}
template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}
template <class T>
void __stcg(T* target, std::type_identity_t<T> value) {
  *target = value;
}
// Bytes of `low` (0 to 3) and `high` (4 to 7), named by the four lower hexadecimal digits of `which`.
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t which) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i)
    result |= static_cast<uint32_t>(bytes >> 8 * (which >> 4 * i & 7) & 0xFF) << 8 * i;
  return result;
}
