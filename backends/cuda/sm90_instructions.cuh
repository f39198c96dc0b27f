// The sm_90a instructions that kernels use, one thin function each: barriers, bulk copies, matrix products.
// Tiles are 64 rows of 64 bf16 (128 bytes a row, 8 KB) in the 128-byte swizzle, 1024-aligned: 16-byte piece p of row r
// lies at r * 128 + ((p ^ r % 8) * 16).
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "backends/gpu/platform/gpu_matrix.h"

namespace cairn::gpu::sm90 {

inline constexpr int kTileBytes = 64 * 128;

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Byte offset of the 16-byte piece `piece` of row `row` of a tile.
__device__ __forceinline__ std::uint32_t swizzled(int row, int piece) {
  return static_cast<std::uint32_t>(row * 128 + ((piece ^ (row & 7)) << 4));
}

// ---------------------------------------------------------------- barriers

__device__ __forceinline__ void barrier_init(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ __forceinline__ void barrier_expect(std::uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\nWAIT_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra WAIT_%=;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// How many lanes of a warp arrive at a barrier for it. One is enough, since __syncwarp orders the others' accesses
/// before its arrival; compute-sanitizer's racecheck does not follow that order: it is given a build in which all arrive.
#ifdef CAIRN_FOR_RACECHECK
inline constexpr int kArrivingLanes = 32;
#else
inline constexpr int kArrivingLanes = 1;
#endif
/// What all lanes of the warp have read and written is done for whoever waits: kArrivingLanes arrivals.
__device__ __forceinline__ void warp_arrive(std::uint32_t barrier, int lane) {
  __syncwarp();
  if (kArrivingLanes > 1 || lane == 0) barrier_arrive(barrier);
}
/// A barrier at which so many warps arrive that way.
__device__ __forceinline__ void barrier_init_for_warps(std::uint32_t barrier, int warps) {
  barrier_init(barrier, warps * kArrivingLanes);
}
/// Orders ordinary shared-memory accesses before later ones of the copy and matrix engines.
__device__ __forceinline__ void fence_engines() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/// The same for global memory that other blocks have written: costs far more.
__device__ __forceinline__ void fence_engines_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
__device__ __forceinline__ void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
/// Two sides of a barrier between two warpgroups: one goes on, the other waits.
__device__ __forceinline__ void pair_arrive(int id) { asm volatile("bar.arrive %0, 256;" ::"r"(id) : "memory"); }
__device__ __forceinline__ void pair_wait(int id) { asm volatile("bar.sync %0, 256;" ::"r"(id) : "memory"); }
/// Barrier of a cluster's blocks, in two halves. What a thread wrote before need not be seen by who waits: only that it got
/// here. (An arrival that releases is a fence of all memory, 1 us.)
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
/// A shared-memory address of this block as it is in another one of the cluster.
__device__ __forceinline__ std::uint32_t address_in_block(std::uint32_t address, int rank) {
  std::uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
/// Stores 4 bytes there and counts them at the barrier of that block, which waits with barrier_wait_from_blocks.
__device__ __forceinline__ void send_to_block(std::uint32_t address, float x, std::uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(address),
               "r"(__float_as_uint(x)), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void barrier_wait_from_blocks(std::uint32_t barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\nWAIT_%=:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n@!done bra WAIT_%=;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
/// Barrier of the first 256 threads.
__device__ __forceinline__ void warps_barrier() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
/// Barrier of 128 threads; id 1 to 15.
__device__ __forceinline__ void warpgroup_barrier(int id) { asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory"); }

// ---------------------------------------------------------------- copies

__device__ __forceinline__ void load_tile(std::uint32_t to, const CUtensorMap* map, int column, int row,
                                          std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          to),
      "l"(map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/// From three dimensions: column 0 of the innermost.
__device__ __forceinline__ void load_slab(std::uint32_t to, const CUtensorMap* map, int row, int group, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
          to),
      "l"(map), "r"(0), "r"(row), "r"(group), "r"(barrier)
      : "memory");
}
/// The same with a policy for the L2 cache.
__device__ __forceinline__ void load_slab(std::uint32_t to, const CUtensorMap* map, int row, int group, std::uint32_t barrier,
                                          std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(map), "r"(0), "r"(row), "r"(group), "r"(barrier), "l"(policy)
      : "memory");
}
/// From four: column 0, and all of the second last.
__device__ __forceinline__ void load_slab_parts(std::uint32_t to, const CUtensorMap* map, int row, int group, std::uint32_t barrier,
                                                std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%2, %3, %2, %4}], [%5], %6;" ::"r"(to),
      "l"(map), "r"(0), "r"(row), "r"(group), "r"(barrier), "l"(policy)
      : "memory");
}
/// What is read with it makes way for everything else in the L2 cache.
__device__ __forceinline__ std::uint64_t leave_first() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void load_bytes(std::uint32_t to, const void* from, int bytes, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
      "r"(bytes), "r"(barrier)
      : "memory");
}
/// The line on its way to L2, by an ordinary load.
__device__ __forceinline__ void prefetch_line(const float* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

// Copies from shared memory to global memory by the engine, in groups of one thread.
__device__ __forceinline__ void store_tile(const CUtensorMap* map, int column, int row, std::uint32_t from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(column),
               "r"(row), "r"(from)
               : "memory");
}
__device__ __forceinline__ void store_bytes(void* to, std::uint32_t from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void stores_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until the shared memory of all groups but the last kPending has been read, or until they are written.
template <int kPending>
__device__ __forceinline__ void stores_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
template <int kPending>
__device__ __forceinline__ void stores_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Between blocks: what is written before publish() is seen by who has read the value.
__device__ __forceinline__ void publish(int* to, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ __forceinline__ int read_published(const int* from) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// ---------------------------------------------------------------- 8x8 matrices, transposed

__device__ __forceinline__ void load_two_matrices(std::uint32_t (&m)[2], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(m[0]), "=r"(m[1]) : "r"(address) : "memory");
}
__device__ __forceinline__ void load_transposed(std::uint32_t (&m)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void store_matrices(std::uint32_t address, const std::uint32_t (&m)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(m[0]), "r"(m[1]),
               "r"(m[2]), "r"(m[3])
               : "memory");
}

/// Each row of shared memory takes a column of the registers' matrix: what load_transposed reads.
__device__ __forceinline__ void store_transposed(std::uint32_t address, const std::uint32_t (&m)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(m[0]),
               "r"(m[1]), "r"(m[2]), "r"(m[3])
               : "memory");
}

/// 16 bytes in one instruction, whatever the compiler thinks of its registers.
__device__ __forceinline__ uint4 load_shared_16(std::uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address) : "memory");
  return x;
}
__device__ __forceinline__ void store_shared_4(std::uint32_t address, std::uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
__device__ __forceinline__ void store_shared_16(std::uint32_t address, uint4 x) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
}
__device__ __forceinline__ void store_global_16(void* to, uint4 x) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Moves registers between the warpgroups of a block.
template <int kCount>
__device__ __forceinline__ void set_registers_up() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount)); }
template <int kCount>
__device__ __forceinline__ void set_registers_down() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount)); }

// ---------------------------------------------------------------- matrix products of a warpgroup

/// Descriptor of an operand in tiles, contiguous along the summed index ("K-major"): rows are 128 bytes, 8 rows 1024.
__device__ __forceinline__ std::uint64_t operand(std::uint32_t address) {
  return (std::uint64_t{1} << 62) | (std::uint64_t{64} << 32) | (std::uint64_t{1} << 16) | ((address & 0x3FFFF) >> 4);
}
/// The same tiles, contiguous along the other index: 64-wide tiles lie kApart bytes apart, 8 rows of the summed index 1024.
template <int kApart = kTileBytes>
__device__ __forceinline__ std::uint64_t operand_transposed(std::uint32_t address) {
  return (std::uint64_t{1} << 62) | (std::uint64_t{64} << 32) | (std::uint64_t{kApart >> 4} << 16) |
         ((address & 0x3FFFF) >> 4);
}
/// The same from its halves, so that an operand further on costs one addition: `low` has the place in units of 16 bytes.
__device__ __forceinline__ std::uint64_t operand_at(std::uint32_t low, std::uint32_t high) {
  std::uint64_t operand;
  asm("mov.b64 %0, {%1, %2};" : "=l"(operand) : "r"(low), "r"(high));
  return operand;
}
/// `high` of rows of 128 and of 32 bytes, swizzled.
inline constexpr std::uint32_t kRowsOf128 = 1u << 30 | 64, kRowsOf32 = 3u << 30 | 16;
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Keeps the compiler from moving reads or writes of registers that a product uses.
template <int kCount>
__device__ __forceinline__ void pin(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

/// Computed here, not between the products that take them.
__device__ __forceinline__ void pin(std::uint32_t (&words)[4]) {
#pragma unroll
  for (int n = 0; n < 4; ++n) asm volatile("" : "+r"(words[n])::"memory");
}

#define CAIRN_D8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
                       "+f"(d[i + 6]), "+f"(d[i + 7])
#define CAIRN_D32(d) CAIRN_D8(d, 0), CAIRN_D8(d, 8), CAIRN_D8(d, 16), CAIRN_D8(d, 24)
#define CAIRN_D64(d) CAIRN_D32(d), CAIRN_D8(d, 32), CAIRN_D8(d, 40), CAIRN_D8(d, 48), CAIRN_D8(d, 56)
#define CAIRN_NAMES32                                                                                         \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
  "%23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define CAIRN_NAMES64                                                                                         \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
  "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, " \
  "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"

/// d[64 x 64] (+)= a[64 x 16] b[64 x 16]^T, both from shared memory.
__device__ __forceinline__ void multiply_64x64(float (&d)[32], std::uint64_t a, std::uint64_t b, int add) {
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " CAIRN_NAMES32
               ", %32, %33, add, 1, 1, 0, 0;\n}"
               : CAIRN_D32(d)
               : "l"(a), "l"(b), "r"(add));
}
/// d[64 x 64] (+)= a[64 x 16] b[64 x 16]^T, a from registers.
__device__ __forceinline__ void multiply_64x64(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b, int add) {
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " CAIRN_NAMES32
               ", {%32, %33, %34, %35}, %36, add, 1, 1, 0;\n}"
               : CAIRN_D32(d)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
/// d[64 x 32] = a[64 x 16] b[32 x 16]^T, a from registers.
__device__ __forceinline__ void multiply_64x32(float (&d)[16], const std::uint32_t (&a)[4], std::uint64_t b) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, 0, 0;\nwgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, add, 1, 1, "
      "0;\n}"
      : CAIRN_D8(d, 0), CAIRN_D8(d, 8)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
/// d[64 x 128] += a[64 x 16] b[16 x 128], a from registers, b contiguous along its 128 columns.
__device__ __forceinline__ void multiply_64x128_transposed(float (&d)[64], const std::uint32_t (&a)[4], std::uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " CAIRN_NAMES64
               ", {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
               : CAIRN_D64(d)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/// d[64 x 128] (+)= a[64 x 16] b[128 x 16]^T, a from registers.
__device__ __forceinline__ void multiply_64x128(float (&d)[64], const std::uint32_t (&a)[4], std::uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %69, "
      "0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " CAIRN_NAMES64
      ", {%64, %65, %66, %67}, %68, add, 1, 1, 0;\n}"
      : CAIRN_D64(d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
/// d[64 x 128] (+)= a[64 x 16] b[128 x 16]^T, both from shared memory.
__device__ __forceinline__ void multiply_64x128(float (&d)[64], std::uint64_t a, std::uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %66, "
      "0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " CAIRN_NAMES64 ", %64, %65, add, 1, 1, 0, 0;\n}"
      : CAIRN_D64(d)
      : "l"(a), "l"(b), "r"(add));
}
/// d[64 x 128] (+)= a[64 x 16] b[16 x 128], a from registers, b contiguous along its 128 columns.
__device__ __forceinline__ void multiply_64x128_rows(float (&d)[64], const std::uint32_t (&a)[4], std::uint64_t b,
                                                     int add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %69, "
      "0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " CAIRN_NAMES64
      ", {%64, %65, %66, %67}, %68, add, 1, 1, 1;\n}"
      : CAIRN_D64(d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

/// d[16 x 8] += a[16 x 8] b[8 x 8] of one warp, tf32 operands, f32 sums.
__device__ __forceinline__ void multiply_16x8_tf32(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// d[16 x 8] += a[16 x 16] b[16 x 8] of one warp, f16 operands, f32 sums.
__device__ __forceinline__ void multiply_16x8_f16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                                  std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/// The same with a[16 x 8] b[8 x 8].
__device__ __forceinline__ void multiply_16x8_f16(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a0), "r"(a1), "r"(b));
}
__device__ __forceinline__ std::uint32_t pack_f16(float low, float high) {
  std::uint32_t words;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(words) : "f"(high), "f"(low));
  return words;
}
__device__ __forceinline__ float2 unpack_f16(std::uint32_t words) {
  float2 x;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}"
      : "=f"(x.x), "=f"(x.y)
      : "r"(words));
  return x;
}
/// An 8 x 8 matrix in the registers of a warp, transposed.
__device__ __forceinline__ std::uint32_t turn_matrix(std::uint32_t words) {
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(words));
  return words;
}

}  // namespace cairn::gpu::sm90
