// sdm_claim: rows for the slots that a prefill writes, for all tokens at once, and where every row is then found.
//   mark      a slot in need holds INT_MIN + its first occurrence in the sequence (atomic minimum)
//   count     first occurrences in pieces of kSdmChunk
//   number    the first occurrence of a slot takes row first_free + (first occurrences before it): row numbers follow
//             the order of tokens, heads and places, as if the tokens had come alone
//   resolve   for every occurrence the address of the row's values before the token (M0 or the shared row until the
//             token that claims it), and whether one of the two tokens before, or its own write, has newer ones
//   Launch    mark, count, number: grid (pieces, B), 256 threads of 4 occurrences; resolve: grid (T, H), 128 threads
#pragma once

#include <climits>

#include "backends/gpu/kernels/sdm_address.cuh"

namespace cairn::gpu {

inline constexpr int kSdmClaimThreads = 256, kSdmClaimsEach = kSdmChunk / kSdmClaimThreads;

/// The occurrences of one thread: kSdmClaimsEach neighbours of the sequence's [tokens, H, W'].
struct SdmOccurrences {
  __device__ explicit SdmOccurrences(const SdmKernelArgs& args) {
    const SdmArgs& call = args.call;
    b = static_cast<int>(blockIdx.y);
    writes = sdm_kept(call.write_count, call.side);
    per_token = static_cast<std::int64_t>(call.head_count) * writes;
    begin = call.batch.offsets[b] * per_token;
    count = call.batch.offsets[b + 1] * per_token - begin;
    first = static_cast<std::int64_t>(blockIdx.x) * kSdmChunk + threadIdx.x * kSdmClaimsEach;
    first_chunk = begin / kSdmChunk + b;
    table = call.tables[b];
    slot_count = static_cast<std::int64_t>(call.side) * call.side;
    head_count = call.head_count;
  }
  /// The entry of row_of_slot of occurrence i of the sequence; null where it needs no row.
  __device__ std::int32_t* entry_in_need(const SdmScratch& scratch, std::int64_t i) const {
    if (i >= count || scratch.write_rows[begin + i] >= scratch.first_private[b]) return nullptr;
    return table.row_of_slot + i / writes % head_count * slot_count + scratch.write_slots[begin + i];
  }
  __device__ bool is_chunk() const { return static_cast<std::int64_t>(blockIdx.x) * kSdmChunk < count; }

  int b, writes, head_count;
  std::int64_t per_token, begin, count, first, first_chunk, slot_count;
  SdmTable table;
};

/// Marks are below -1, which is a slot that equals M0.
inline constexpr std::int64_t kSdmMostClaims = INT_MAX - 1;
__device__ inline std::int32_t claim_mark(std::int64_t occurrence) {
  return INT_MIN + static_cast<std::int32_t>(occurrence);
}

__global__ void sdm_mark_kernel(SdmKernelArgs args) {
  const SdmOccurrences own(args);
  for (int e = 0; e < kSdmClaimsEach; ++e) {
    std::int32_t* entry = own.entry_in_need(args.scratch, own.first + e);
    if (entry) atomicMin(entry, claim_mark(own.first + e));
  }
}

/// True where an occurrence is the first of its slot. Also while other blocks number: rows are not marks.
__device__ inline bool is_first_claim(const SdmOccurrences& own, const SdmScratch& scratch, int e) {
  const std::int32_t* entry = own.entry_in_need(scratch, own.first + e);
  return entry && *entry == claim_mark(own.first + e);
}

__global__ void sdm_count_kernel(SdmKernelArgs args) {
  __shared__ float partial[32];
  const SdmOccurrences own(args);
  if (!own.is_chunk()) return;
  int claims = 0;
  for (int e = 0; e < kSdmClaimsEach; ++e) claims += is_first_claim(own, args.scratch, e) ? 1 : 0;
  const float all = block_sum(static_cast<float>(claims), partial);  // at most kSdmChunk: exact
  if (threadIdx.x == 0) args.scratch.chunk_claims[own.first_chunk + blockIdx.x] = static_cast<std::int32_t>(all);
}

/// Sum of the pieces before this block's.
__device__ inline int claims_before(const SdmOccurrences& own, const SdmScratch& scratch, int* partial) {
  int sum = 0;
  for (unsigned chunk = threadIdx.x; chunk < blockIdx.x; chunk += blockDim.x)
    sum += scratch.chunk_claims[own.first_chunk + chunk];
  for (int distance = warp_size() / 2; distance > 0; distance /= 2) sum += shuffle_xor(sum, distance);
  if (threadIdx.x % warp_size() == 0) partial[threadIdx.x / warp_size()] = sum;
  __syncthreads();
  int total = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / warp_size(); ++w) total += partial[w];
  __syncthreads();
  return total;
}

__global__ void sdm_number_kernel(SdmKernelArgs args) {
  __shared__ int partial[kSdmClaimThreads / kSdmGroup], group_claims[kSdmClaimThreads / kSdmGroup];
  const SdmOccurrences own(args);
  if (!own.is_chunk()) return;
  const SdmScratch& scratch = args.scratch;
  const int lane = static_cast<int>(threadIdx.x) % kSdmGroup, group = static_cast<int>(threadIdx.x) / kSdmGroup;
  bool is_first[kSdmClaimsEach];
  int claims = 0;
  for (int e = 0; e < kSdmClaimsEach; ++e) claims += (is_first[e] = is_first_claim(own, scratch, e)) ? 1 : 0;
  const int before_in_group = sum_before(claims, lane);
  if (lane == kSdmGroup - 1) group_claims[group] = before_in_group + claims;
  int rank = claims_before(own, scratch, partial) + before_in_group;  // and all have written group_claims
  for (int g = 0; g < group; ++g) rank += group_claims[g];
  const std::int32_t first_free = scratch.first_free[own.b];
  for (int e = 0; e < kSdmClaimsEach; ++e) {
    if (!is_first[e]) continue;
    const std::int64_t i = own.first + e;
    scratch.claim_tokens[own.begin + rank] = static_cast<std::int32_t>((own.begin + i) / own.per_token);
    scratch.claim_rows[own.begin + rank] = scratch.write_rows[own.begin + i];
    *own.entry_in_need(scratch, i) = first_free + rank;
    ++rank;
  }
  const bool is_last = (static_cast<std::int64_t>(blockIdx.x) + 1) * kSdmChunk >= own.count;
  if (is_last && threadIdx.x == kSdmClaimThreads - 1) own.table.control[0] = first_free + rank;
}

/// The place of a slot in a list, or -1.
__device__ inline int place_of_slot(const std::int32_t* slots, int count, std::int32_t slot) {
  int place = -1;
  for (int j = 0; j < count; ++j) place = slots[j] == slot ? j : place;
  return place;
}

/// Where a slot was last written, among the two tokens before: see SdmWrite.
__device__ inline int link_of_slot(const std::int32_t (&slots)[3][kSdmMaxCount], int writes, int tokens_before,
                                   std::int32_t slot) {
  const int one_before = tokens_before > 0 ? place_of_slot(slots[1], writes, slot) : -1;
  if (one_before >= 0 || tokens_before < 2) return one_before;
  const int two_before = place_of_slot(slots[2], writes, slot);
  return two_before < 0 ? -1 : kSdmMaxCount + two_before;
}

__global__ void sdm_resolve_kernel(SdmKernelArgs args) {
  __shared__ std::int32_t slots[3][kSdmMaxCount];  // of the token, one before, two before
  __shared__ float read_weight[kSdmMaxCount];      // with which the token reads the slot that it writes
  const SdmArgs& call = args.call;
  const SdmScratch& scratch = args.scratch;
  const std::int64_t t = blockIdx.x, head = blockIdx.y, pair = t * call.head_count + head;
  const SdmSequenceView sequence(call, t);
  const int writes = sdm_kept(call.write_count, call.side), reads = sdm_kept(call.read_count, call.side);
  const int tokens_before = t - sequence.first_token < 2 ? static_cast<int>(t - sequence.first_token) : 2;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t slot_count = static_cast<std::int64_t>(call.side) * call.side;
  const std::int32_t* row_of_slot = sequence.table.row_of_slot + head * slot_count;
  const std::int32_t first_free = scratch.first_free[sequence.index];
  const std::int64_t first_claim = sequence.first_token * call.head_count * writes;
  for (int before = 0; before <= tokens_before; ++before) {
    if (thread < writes)
      slots[before][thread] = scratch.write_slots[(pair - before * call.head_count) * writes + thread];
  }
  read_weight[thread] = 0;
  __syncthreads();
  if (thread < reads) {
    const std::int64_t at = pair * reads + thread;
    const std::int32_t slot = scratch.read_slots[at];
    const int own = place_of_slot(slots[0], writes, slot), link = link_of_slot(slots, writes, tokens_before, slot);
    std::int32_t row = row_of_slot[slot];
    if (row >= first_free && scratch.claim_tokens[first_claim + row - first_free] > t) {
      row = scratch.claim_rows[first_claim + row - first_free];
    }
    const bool is_elsewhere = own >= 0 || link >= 0;
    if (own >= 0) read_weight[own] = scratch.read_weights[at];
    scratch.reads[at] = {is_elsewhere ? 0 : sdm_source(args, sequence.table, row, head * slot_count + slot),
                         own >= 0 ? 0.0f : scratch.read_weights[at], own >= 0 ? -1 : link};
  }
  __syncthreads();
  if (thread < writes) {
    const std::int64_t at = pair * writes + thread;
    const std::int32_t slot = slots[0][thread], row = row_of_slot[slot];
    const bool is_claimed_here = row >= first_free && scratch.claim_tokens[first_claim + row - first_free] == t;
    const int link = link_of_slot(slots, writes, tokens_before, slot);
    const SdmSource target = sdm_source(args, sequence.table, row, 0);
    const SdmSource source =
        is_claimed_here ? sdm_source(args, sequence.table, scratch.write_rows[at], head * slot_count + slot) : target;
    const float g = call.log_decay[pair], weight = scratch.write_weights[at];
    scratch.writes[at] = {link >= 0 ? 0 : source, target, expf(call.key_weighted_decay ? g * weight : g), weight,
                          read_weight[thread],    link};
  }
}

}  // namespace cairn::gpu
