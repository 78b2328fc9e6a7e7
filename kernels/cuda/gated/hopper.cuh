// The machine instructions that compute capability 9.0 alone has and gated_product.cu needs: products of a
// warpgroup, copies of tiles by tensor maps to all blocks of a cluster, and barriers of other blocks.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device.cuh"

namespace allot::kernels::cuda {

// What a warpgroup multiplies: rows of a tile of 64 columns, 128 bytes, at a multiple of 1,024 bytes. Their
// 16-byte pieces lie where tensor maps with a swizzle of 128 bytes put them, piece i of row r at i ^ (r % 8).
// Sixteen columns further on is 32 bytes further on.
__device__ __forceinline__ uint64_t tile_operand(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kEightRows = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kEightRows | uint64_t{1} << 16 | (address & 0x3FFFF) >> 4;
}
inline constexpr uint64_t kSixteenColumns = 32 >> 4;

// Registers of a product that is still at work must not be touched between these two.
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void end_group_of_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until all groups but the last kLeft have ended.
template <int kLeft>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

inline constexpr int kSums = 128;  // of a lane

// Until all products have ended. What reads the sums stays behind it.
__device__ __forceinline__ void wait_for_sums(float (&sums)[kSums]) {
  wait_for_products<0>();
#pragma unroll
  for (float& sum : sums) asm volatile("" : "+f"(sum)::"memory");
}

#define ALLOT_8(f, i) f(i), f(i + 1), f(i + 2), f(i + 3), f(i + 4), f(i + 5), f(i + 6), f(i + 7)
#define ALLOT_64(f, i)                                                                          \
  ALLOT_8(f, i), ALLOT_8(f, i + 8), ALLOT_8(f, i + 16), ALLOT_8(f, i + 24), ALLOT_8(f, i + 32), \
      ALLOT_8(f, i + 40), ALLOT_8(f, i + 48), ALLOT_8(f, i + 56)
#define ALLOT_SUM(i) "+f"(sums[i])
#define ALLOT_WGMMA(types)                                                                               \
  asm volatile(                                                                                          \
      "{\n"                                                                                              \
      ".reg .pred adds;\n"                                                                               \
      "setp.ne.b32 adds, %130, 0;\n"                                                                     \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." types                                               \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25," \
      "%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49," \
      "%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73," \
      "%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97," \
      "%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,"    \
      "%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, %128, %129, adds, 1, 1, 0, 0;\n"         \
      "}\n"                                                                                              \
      : ALLOT_64(ALLOT_SUM, 0), ALLOT_64(ALLOT_SUM, 64)                                                  \
      : "l"(a), "l"(b), "r"(adds ? 1 : 0))

// sums[64 x 256] = a[64 x 16] . b[256 x 16]^T, added to what they are if `adds`. Lane l of warp w of the
// warpgroup holds rows 16 w + l / 4 and 8 more, of columns 8 i + 2 (l % 4): sums[4 i], sums[4 i + 1] of the
// first row and sums[4 i + 2], sums[4 i + 3] of the second.
template <class T>
__device__ __forceinline__ void multiply_tiles(float (&sums)[kSums], uint64_t a, uint64_t b, bool adds) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    ALLOT_WGMMA("bf16.bf16");
  } else {
    ALLOT_WGMMA("f16.f16");
  }
}

#undef ALLOT_WGMMA
#undef ALLOT_SUM
#undef ALLOT_64
#undef ALLOT_8

// Says that kBytes more will be copied before the barrier is passed, and arrives.
template <int kBytes>
__device__ __forceinline__ void arrive_expecting(uint32_t barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "n"(kBytes)
               : "memory");
}

// Arrives at the barrier that block `rank` of the cluster has where this one has its own. Only says that
// products have read something: what was written is not made visible to that block, which takes a fence of
// the whole GPU.
__device__ __forceinline__ void arrive_at_block(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

__device__ __forceinline__ uint64_t address_of(const CUtensorMap& map) {
  return reinterpret_cast<uint64_t>(&map);
}

// Starts the copy of the tile at (column, row) of a map to shared memory; the barrier counts its bytes.
__device__ __forceinline__ void copy_tile(uint32_t target, const CUtensorMap& map, int32_t column,
                                          int32_t row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(target),
      "l"(address_of(map)), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

// The same to the same place in every block of the cluster that `blocks` has a bit of, whose barriers count.
__device__ __forceinline__ void copy_tile_to_blocks(uint32_t target, const CUtensorMap& map, int32_t column,
                                                    int32_t row, uint32_t barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(target),
      "l"(address_of(map)), "r"(column), "r"(row), "r"(barrier), "h"(blocks)
      : "memory");
}

// Starts to write a tile from shared memory to (column, row) of a map; what lies outside is left out.
__device__ __forceinline__ void store_tile(const CUtensorMap& map, int32_t column, int32_t row,
                                           uint32_t source) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(address_of(map)),
      "r"(column), "r"(row), "r"(source)
      : "memory");
}
__device__ __forceinline__ void end_group_of_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until the tiles that this thread has begun to write have been read from shared memory.
__device__ __forceinline__ void wait_until_tiles_are_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Lets copies of tiles see what this thread has written to shared memory.
__device__ __forceinline__ void show_to_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Stores four matrices of 8 x 8 elements, of which lane l holds row l / 4, columns 2 (l % 4) and the next, in
// words[i] of matrix i, and brings the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(uint32_t address, const uint32_t (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

// The 128 threads of a warpgroup meet; group numbers 0 and 1.
__device__ __forceinline__ void meet_in_warpgroup(uint32_t group) {
  asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}

// The warpgroup's threads give registers up, or take them.
template <int kRegisters>
__device__ __forceinline__ void keep_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace allot::kernels::cuda
