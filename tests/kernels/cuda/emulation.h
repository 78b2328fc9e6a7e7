// CUDA C++ on the host: the threads of a block are coroutines of one host thread, which change places where
// they wait for each other, so that the source of a kernel runs, and can be tested, without a GPU. Warps are
// whole in every collective, as the value kernels have them; blocks run one after the other. Include this
// before a header of kernels/cuda, with the macro `cuda` defined as the name of another namespace: the
// kernels that nvcc compiled have the same names.
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

// The block that runs.
class Block {
 public:
  // Runs body() once for each of `threads` threads, a multiple of 32, with `shared_bytes` of dynamic shared
  // memory.
  static void run(int threads, int64_t shared_bytes, const std::function<void()>& body);

  static Index thread_index() { return {static_cast<unsigned>(running_->current_)}; }
  static char* shared_memory() { return running_->shared_; }
  static Index block_index;
  static Index grid;

  // Waits for all threads of the block that have not ended.
  static void sync_threads() { running_->wait_for(running_->all_); }
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

  void wait_for(Barrier& barrier);
  void leave(Barrier& barrier);
  void change_place();
  static void start();

  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  Barrier all_;
  int current_ = 0;
  int left_ = 0;
  char* shared_ = nullptr;
  const std::function<void()>* body_ = nullptr;
  jmp_buf outside_;
  static Block* running_;
};

template <class T>
const T* Block::exchange(T value) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  Block& block = *running_;
  Thread& thread = block.threads_[static_cast<size_t>(block.current_)];
  Warp& warp = block.warps_[static_cast<size_t>(block.current_ / 32)];
  unsigned char* const values = warp.values[thread.turn];
  thread.turn ^= 1;
  std::memcpy(values + static_cast<size_t>(block.current_ % 32) * sizeof(T), &value, sizeof(T));
  block.wait_for(warp.barrier);
  return reinterpret_cast<const T*>(values);
}

inline int lane() {
  return static_cast<int>(Block::thread_index().x % 32);
}

}  // namespace emulation

#undef __device__
#undef __host__
#undef __global__
#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#undef __align__
#define __device__
#define __host__
#define __global__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define ALLOT_DYNAMIC_SHARED(alignment, name) char* const name = ::emulation::Block::shared_memory()
#define threadIdx (::emulation::Block::thread_index())
#define blockIdx (::emulation::Block::block_index)
#define gridDim (::emulation::Block::grid)

using std::isfinite;

template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}

inline void __syncthreads() {
  emulation::Block::sync_threads();
}
inline void __syncwarp() {
  emulation::Block::exchange(0);
}
inline void __threadfence() {}
int __syncthreads_and(int value);

template <class T>
T __shfl_sync(unsigned, T value, int from, int width = 32) {
  const int lane = emulation::lane();
  return emulation::Block::exchange(value)[lane / width * width + from % width];
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  const int lane = emulation::lane();
  return emulation::Block::exchange(value)[lane ^ mask];
}
template <class T>
T __shfl_up_sync(unsigned, T value, int distance, int width = 32) {
  const int lane = emulation::lane();
  return emulation::Block::exchange(value)[lane % width < distance ? lane : lane - distance];
}
template <class T>
T __shfl_down_sync(unsigned, T value, int distance, int width = 32) {
  const int lane = emulation::lane();
  return emulation::Block::exchange(value)[lane % width + distance >= width ? lane : lane + distance];
}
inline uint32_t __ballot_sync(unsigned, bool value) {
  const int* const values = emulation::Block::exchange(value ? 1 : 0);
  uint32_t bits = 0;
  for (int i = 0; i < 32; ++i) bits |= values[i] != 0 ? 1u << i : 0u;
  return bits;
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
