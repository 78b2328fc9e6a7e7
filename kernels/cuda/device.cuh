// The few machine instructions the kernels need beyond CUDA C++: matrix products of 16-bit
// elements, streaming copies from global to shared memory, and the overlap of a kernel's start with
// its predecessor's end. What the value kernels need of them can also be had without nvcc, since tests run
// those kernels on the host (tests/kernels/cuda/emulation.h).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __CUDACC__
// Names the shared memory whose size the launch gives.
#define ALLOT_DYNAMIC_SHARED(alignment, name) \
  extern __shared__ __align__(alignment)      \
  char name[]
#endif

namespace allot::kernels::cuda {

inline constexpr unsigned kFullWarp = 0xFFFFFFFFu;
inline constexpr float kLog2E = 1.4426950408889634f;

// Lets the next kernel start its prologue; it still waits for the end of this one before it reads results.
__device__ __forceinline__ void let_dependents_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the kernel before this one has ended and its writes are visible.
__device__ __forceinline__ void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The blocks of a cluster meet: whoever waits goes on when all threads of the cluster that have not ended
// have arrived, and sees what they wrote to shared memory before. To arrive and to wait alternate.
__device__ __forceinline__ void arrive_at_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#elif !defined(__CUDACC__)
  emulated_wait_for_cluster();
#endif
}

// Where block `rank` of the cluster has what this one has at `own`, in shared memory. It must have started.
template <class T>
__device__ __forceinline__ T* in_block_of_cluster(T* own, int rank) {
#if __CUDA_ARCH__ >= 900
  T* there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(own), "r"(rank));
  return there;
#elif !defined(__CUDACC__)
  return emulated_in_block_of_cluster(own, rank);
#else
  return own;
#endif
}

// 2^x to about 2 units in the last place; 0 for -infinity.
__device__ __forceinline__ float fast_exp2(float x) {
#ifdef __CUDACC__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

// A row of values is read once by one group of lanes: it need not stay in L1.
__device__ __forceinline__ uint4 load_streamed_vector(const void* global) {
#ifdef __CUDACC__
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(global));
  return v;
#else
  return *static_cast<const uint4*>(global);
#endif
}

// Says that the content of 128 aligned bytes, which this launch has written, is not read again before it is
// written anew: L2 has room for other lines then, and memory need not be written. What they hold is undefined
// from now on.
__device__ __forceinline__ void discard_line(const void* line) {
#if __CUDA_ARCH__ >= 800
  asm volatile("discard.global.L2 [%0], 128;" ::"l"(line) : "memory");
#elif !defined(__CUDACC__)
  // Whoever reads it all the same gets NaN.
  std::memset(const_cast<void*>(line), 0xFF, 128);
#endif
}

// The value of a counter, and what was written before it was counted.
__device__ __forceinline__ int32_t load_acquired(const int32_t* counter) {
#ifdef __CUDACC__
  int32_t seen;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
  return seen;
#else
  return *counter;
#endif
}

// A counter of which a launch takes `count` numbers in all, from 0 on, so that it ends at zero, as it began.
__device__ __forceinline__ int32_t take_number(int32_t* counter, int32_t count) {
  return static_cast<int32_t>(
      atomicInc(reinterpret_cast<uint32_t*>(counter), static_cast<uint32_t>(count - 1)));
}

// Whether the caller is the last of `count` that arrive at such a counter. It sees what the others wrote or
// saw written before.
__device__ __forceinline__ bool arrives_last(int32_t* counter, int32_t count) {
#ifdef __CUDACC__
  uint32_t number;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(number)
               : "l"(counter), "r"(static_cast<uint32_t>(count - 1))
               : "memory");
  return number == static_cast<uint32_t>(count - 1);
#else
  return take_number(counter, count) == count - 1;
#endif
}

// Two packed elements as floats, the one at the lower address first.
template <class T>
__device__ __forceinline__ float2 unpack(uint32_t pair) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u)};
  } else {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  }
}

template <class T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}

// acc[16 x 8] += a[16 x 16] . b[16 x 8]. Lane 4 g + t holds a's rows g and g + 8 (columns 2t, 2t + 1 in x, y
// and 2t + 8, 2t + 9 in z, w), b's column g (rows 2t, 2t + 1 in the first word and 2t + 8, 2t + 9 in the
// second), and acc's rows g and g + 8, columns 2t and 2t + 1.
template <class T>
__device__ __forceinline__ void multiply_accumulate(float (&acc)[4], const uint4& a, uint32_t b0,
                                                    uint32_t b1) {
#ifndef __CUDACC__
  emulated_multiply_accumulate<T>(acc, a, b0, b1);
#else
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
  } else {
    static_assert(std::is_same_v<T, __half>);
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
  }
#endif
}

// acc[16 x 8] += a[16 x 32] . b[32 x 8] of signed bytes, exactly. Lane 4 g + t holds a's rows g (x, z) and g
// + 8 (y, w), columns 4t to 4t + 3 in x, y and 16 more in z, w, b's column g (rows 4t to 4t + 3 in the first
// word and 16 more in the second), and acc's rows g and g + 8, columns 2t and 2t + 1.
__device__ __forceinline__ void multiply_accumulate_bytes(int32_t (&acc)[4], const uint4& a, uint32_t b0,
                                                          uint32_t b1) {
#ifdef __CUDACC__
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(acc[0]), "+r"(acc[1]), "+r"(acc[2]), "+r"(acc[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
#else
  emulated_multiply_accumulate_bytes(acc, a, b0, b1);
#endif
}

#ifdef __CUDACC__
// Four matrices of 8 x 16 bytes: lanes 8 m to 8 m + 7 give the addresses in shared memory of the rows of
// matrix m, and word m of lane 4 g + t are bytes 4t to 4t + 3 of its row g, as a's in the product above.
__device__ __forceinline__ uint4 load_shared_matrices(uint32_t row) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(row));
  return v;
}

__device__ __forceinline__ float load_shared_float(uint32_t address) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address));
  return x;
}
#endif

// sum + the products of four signed bytes each.
__device__ __forceinline__ int32_t add_products_of_bytes(uint32_t a, uint32_t b, int32_t sum) {
#ifdef __CUDACC__
  return __dp4a(static_cast<int32_t>(a), static_cast<int32_t>(b), sum);
#else
  for (int i = 0; i < 32; i += 8)
    sum += static_cast<int8_t>(a >> i & 0xFF) * static_cast<int8_t>(b >> i & 0xFF);
  return sum;
#endif
}

// Address in shared memory of what lies there.
__device__ __forceinline__ uint32_t shared_address(const void* shared) {
#ifdef __CUDACC__
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
#else
  return emulated_shared_address(shared);
#endif
}

// From an address in shared memory.
__device__ __forceinline__ uint4 load_shared_vector(uint32_t address) {
  uint4 v;
#ifdef __CUDACC__
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address));
#else
  v = *static_cast<const uint4*>(emulated_shared_memory(address));
#endif
  return v;
}

__device__ __forceinline__ uint2 load_shared_pair(uint32_t address) {
  uint2 v;
#ifdef __CUDACC__
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
#else
  v = *static_cast<const uint2*>(emulated_shared_memory(address));
#endif
  return v;
}

// A barrier at an address in shared memory, passed each time `count` threads have arrived.
__device__ __forceinline__ void init_barrier(uint32_t barrier, int count) {
#ifdef __CUDACC__
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
#else
  emulated_init_barrier(emulated_shared_memory(barrier), count);
#endif
}
__device__ __forceinline__ void arrive_at(uint32_t barrier) {
#ifdef __CUDACC__
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#else
  emulated_arrive_at(emulated_shared_memory(barrier));
#endif
}
// Until it has been passed time number `time`, counted from 0. Sees what those who arrived wrote before.
__device__ __forceinline__ void wait_at(uint32_t barrier, int32_t time) {
#ifdef __CUDACC__
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
#if __CUDA_ARCH__ >= 900
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#else
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#endif
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(time & 1)
      : "memory");
#else
  emulated_wait_at(emulated_shared_memory(barrier), time);
#endif
}

// What this thread has read and written in shared memory comes before bulk copies that are started from now
// on.
__device__ __forceinline__ void let_copies_overwrite() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Starts the copy of 16 bytes to an address in shared memory; copies belong to the group that ends next.
__device__ __forceinline__ void copy_to_shared(uint32_t target, uint64_t from) {
#ifdef __CUDACC__
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(from) : "memory");
#else
  *static_cast<uint4*>(emulated_shared_memory(target)) = *reinterpret_cast<const uint4*>(from);
#endif
}
__device__ __forceinline__ void end_group_of_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Until all groups but the last kLeft have arrived.
template <int kLeft>
__device__ __forceinline__ void wait_for_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#endif
}

// kThreads threads of the block meet, whole warps; a block has one such group.
template <int kThreads>
__device__ __forceinline__ void meet_some() {
#ifdef __CUDACC__
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
#else
  emulated_meet_some(kThreads);
#endif
}

#ifdef __CUDACC__  // what only the score kernels need

// Policy for stores whose lines should stay in L2.
__device__ __forceinline__ uint64_t keep_in_l2() {
  uint64_t policy = 0;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ void store_kept(void* target, const uint4& v, uint64_t policy) {
  asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1,%2,%3,%4}, %5;" ::"l"(target), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w), "l"(policy)
               : "memory");
}

// Brings a line of global memory to L2.
__device__ __forceinline__ void prefetch(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

// Adds to a counter once everything this thread has written or seen written is visible to the device.
__device__ __forceinline__ void add_released(int32_t* counter, int32_t x) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(counter), "r"(x) : "memory");
}

#endif

}  // namespace allot::kernels::cuda
