// sdm_walk: prefill of the slot tables, token by token, after sdm_claim.
//   Computes  as sdm_reference.cpp
//   Shapes    v, out, residual [T, H, V]; rows f32, V wide; M0 read where it lies
//   Launch    grid (column tiles, H, B); groups of 32 lanes walk alone over their columns: no block barrier
//   Per token a lane holds kRows write rows and kRows read rows of kColumns columns. Rows are on their way two tokens
//   ahead;
//             those that a token in between writes come from shared memory instead (links). The lists of rows are
//             copied to shared memory kSdmAhead tokens ahead.
//   Numerics  f32; the rows of a lane in order, then lanes by halves: bits do not depend on the batch or on splits
#pragma once

#include "backends/gpu/kernels/sdm_claim.cuh"
#include "backends/gpu/kernels/sdm_decode.cuh"
#include "backends/gpu/platform/gpu_matrix.h"

namespace cairn::gpu {

inline constexpr int kSdmAhead = 6,
                     kSdmLists = 8;  ///< lists in shared memory: of the token, those ahead, and a free one

/// Shared memory of a group: lists of kSdmLists tokens, new rows of three.
template <int kRows, int kColumnLanes, int kColumns>
struct SdmWalkShared {
  static constexpr int kPlaces = kRows * SdmLanes<kColumnLanes>::kRowLanes;
  SdmWrite writes[kSdmLists][kPlaces];
  SdmRead reads[kSdmLists][kPlaces];
  float tiles[3][kPlaces * kColumnLanes * kColumns];
};

/// Rows of a token in registers, or on their way there.
template <int kRows, int kColumns>
struct SdmStage {
  float written[kRows][kColumns], read[kRows][kColumns], value[kColumns], beta;
};

/// One group's walk over the tokens [begin, end) of a head; `s` counts from begin.
template <int kRows, int kColumnLanes, int kColumns>
class SdmWalk {
 public:
  using Lanes = SdmLanes<kColumnLanes>;
  using Shared = SdmWalkShared<kRows, kColumnLanes, kColumns>;
  using Stage = SdmStage<kRows, kColumns>;

  __device__ SdmWalk(const SdmKernelArgs& args, Shared& shared) : args_(args), call_(args.call), shared_(shared) {
    writes_ = sdm_kept(call_.write_count, call_.side), reads_ = sdm_kept(call_.read_count, call_.side);
    head_ = blockIdx.y;
    begin_ = call_.batch.offsets[blockIdx.z];
    length_ = call_.batch.offsets[blockIdx.z + 1] - begin_;
    column_ = Lanes::template column<kColumns>(blockIdx.x);
    is_inside_ = column_ < call_.value_dim;
  }
  __device__ std::int64_t length() const { return length_; }

  /// Lists of the first tokens; places beyond the sets stay empty.
  __device__ void begin() {
    const int lane = static_cast<int>(threadIdx.x) % kSdmGroup;
    for (int i = lane; i < kSdmLists * Shared::kPlaces; i += kSdmGroup) {
      shared_.writes[i / Shared::kPlaces][i % Shared::kPlaces] = {0, 0, 0, 0, 0, -1};
      shared_.reads[i / Shared::kPlaces][i % Shared::kPlaces] = {0, 0, -1};
    }
    warp_barrier();
    for (int s = 0; s < kSdmAhead; ++s) copy_lists(s);
    wait_for_copies<kSdmAhead - 3>();
    warp_barrier();
  }

  /// Starts the copy of a token's lists; their place was last read before the last barrier.
  __device__ void copy_lists(std::int64_t s) {
    if (s < length_) {
      const std::int64_t pair = (begin_ + s) * call_.head_count + head_;
      const int slot = static_cast<int>(s % kSdmLists), lane = static_cast<int>(threadIdx.x) % kSdmGroup;
      const auto copy = [lane](void* to, const void* from, int pieces) {
        for (int i = lane; i < pieces; i += kSdmGroup) {
          copy_16_async(static_cast<float4*>(to) + i, static_cast<const float4*>(from) + i, true);
        }
      };
      copy(shared_.writes[slot], args_.scratch.writes + pair * writes_, 2 * writes_);
      copy(shared_.reads[slot], args_.scratch.reads + pair * reads_, reads_);
    }
    commit_copies();
  }

  /// Starts the loads of a token's rows, without those that are linked.
  __device__ void load(std::int64_t s, Stage& stage) const {
    if (s >= length_) return;
    const std::int64_t t = begin_ + s;
    const SdmWrite* writes = shared_.writes[s % kSdmLists];
    const SdmRead* reads = shared_.reads[s % kSdmLists];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int i = Lanes::row() + k * Lanes::kRowLanes;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) stage.written[k][c] = stage.read[k][c] = 0;
      if (is_inside_ && writes[i].source) load_columns(writes[i].source, column_, stage.written[k]);
      if (is_inside_ && reads[i].source) load_columns(reads[i].source, column_, stage.read[k]);
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      stage.value[c] = is_inside_ ? load_raw(call_.v, call_.dtype, t, head_ * call_.value_dim + column_ + c) : 0.0f;
    }
    stage.beta = call_.beta[t * call_.head_count + head_];
  }

  /// The token's rows have come: takes those that the last two tokens wrote.
  __device__ void take_links(std::int64_t s, Stage& stage) const {
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int i = Lanes::row() + k * Lanes::kRowLanes;
      const SdmWrite& write = shared_.writes[s % kSdmLists][i];
      const SdmRead& read = shared_.reads[s % kSdmLists][i];
      if (is_inside_) unpack_columns(write.source, call_.initial_dtype, stage.written[k]);
      if (is_inside_) unpack_columns(read.source, call_.initial_dtype, stage.read[k]);
      take_link(s, write.link, stage.written[k]);
      take_link(s, read.link, stage.read[k]);
    }
  }

  /// Predict, write, read. All lists but the last kSdmAhead - 3 that were asked for have come when it ends.
  __device__ void run(std::int64_t s, Stage& stage) const {
    const SdmWrite* writes = shared_.writes[s % kSdmLists];
    float residual[kColumns] = {}, out[kColumns] = {};
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const SdmWrite& write = writes[Lanes::row() + k * Lanes::kRowLanes];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        stage.written[k][c] *= write.decay;
        residual[c] += write.weight * stage.written[k][c];
      }
    }
    Lanes::sum_rows(residual);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      stage.value[c] = raw_value(stage.value[c], call_.dtype);
      residual[c] = stage.value[c] - residual[c];
    }
    float* tile = shared_.tiles[s % 3];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int i = Lanes::row() + k * Lanes::kRowLanes;
      const SdmWrite& write = writes[i];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        float& cell = stage.written[k][c];
        cell += stage.beta * write.weight * (call_.slot_residual ? stage.value[c] - cell : residual[c]);
        out[c] += write.read_weight * cell;
      }
      store_columns(reinterpret_cast<SdmSource>(tile), tile_place(i), stage.written[k]);
      if (is_inside_ && write.target) store_columns(write.target, column_, stage.written[k]);
    }
    wait_for_copies<kSdmAhead - 3>();
    warp_barrier();
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const float weight = shared_.reads[s % kSdmLists][Lanes::row() + k * Lanes::kRowLanes].weight;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) out[c] += weight * stage.read[k][c];
    }
    Lanes::sum_rows(out);
    if (is_inside_ && Lanes::row() == 0) store_outputs(call_, begin_ + s, head_, column_, out, residual);
  }

 private:
  __device__ static int tile_place(int i) { return (i * kColumnLanes + Lanes::column_lane()) * kColumns; }
  __device__ void take_link(std::int64_t s, std::int32_t link, float (&x)[kColumns]) const {
    if (link < 0) return;
    const float* tile = shared_.tiles[(s + (link < kSdmMaxCount ? 2 : 1)) % 3] + tile_place(link % kSdmMaxCount);
    load_columns(reinterpret_cast<SdmSource>(tile), 0, x);
  }

  const SdmKernelArgs& args_;
  const SdmArgs& call_;
  Shared& shared_;
  int writes_, reads_;
  std::int64_t head_, begin_, length_, column_;
  bool is_inside_;
};

template <int kRows, int kColumnLanes, int kColumns>
__global__ void __launch_bounds__(64) sdm_walk_kernel(SdmKernelArgs args) {
  using Walk = SdmWalk<kRows, kColumnLanes, kColumns>;
  auto* groups = reinterpret_cast<typename Walk::Shared*>(dynamic_shared());
  Walk walk(args, groups[threadIdx.x / kSdmGroup]);
  if (walk.length() == 0) return;
  typename Walk::Stage stages[3];
  walk.begin();
  walk.load(0, stages[0]);
  walk.load(1, stages[1]);
  for (std::int64_t first = 0; first < walk.length(); first += 3) {
#pragma unroll
    for (int j = 0; j < 3; ++j) {  // stages by constants: they are registers
      const std::int64_t s = first + j;
      if (s >= walk.length()) break;
      walk.take_links(s, stages[j]);
      walk.load(s + 2, stages[(j + 2) % 3]);
      walk.copy_lists(s + kSdmAhead);
      walk.run(s, stages[j]);
    }
  }
}

}  // namespace cairn::gpu
