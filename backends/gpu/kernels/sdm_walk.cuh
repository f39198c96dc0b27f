// sdm_walk: prefill of the slot tables, token by token, after sdm_claim.
//   Computes  as sdm_reference.cpp
//   Shapes    v, out, residual [T, H, V]; rows f32, V wide; M0 read where it lies
//   Launch    grid (column tiles, H, B); groups of 32 lanes walk alone over their columns: no block barrier
//   How       a lane holds kRows write rows and kRows read rows of kColumns columns of a token. Rows are on their way
//             two tokens ahead; those that a token in between writes come from shared memory instead (links). The
//             lists of rows are copied to shared memory kAhead tokens ahead: 6, or 4 where the chip has no room.
//   Numerics  f32; the rows of a lane in order, then lanes by halves: bits do not depend on the batch or on splits
//   Measured  one H200, bf16, 2,048 tokens of one sequence, H 2; ms, in brackets sdm_address, the claim
//               side  32, V  160, W 16    1.49 (0.02, 0.02)
//               side 480, V 1920, W 64    5.06 (0.22, 0.03)
#pragma once

#include "backends/gpu/kernels/sdm_claim.cuh"
#include "backends/gpu/platform/gpu_matrix.h"

namespace cairn::gpu {

inline constexpr int kSdmAhead = 6, kSdmLeastAhead = 4;

/// Shared memory of a group: lists of the token, of those ahead and a free one; new rows of three.
template <int kRows, int kColumnLanes, int kColumns, int kAhead>
struct SdmWalkShared {
  static constexpr int kLists = kAhead + 2;
  static constexpr int kPlaces = kRows * SdmLanes<kColumnLanes>::kRowLanes;
  SdmWrite writes[kLists][kPlaces];
  SdmRead reads[kLists][kPlaces];
  float tiles[3][kPlaces * kColumnLanes * kColumns];
};

/// Rows of a token in registers as they lie, or on their way there.
template <int kRows, int kColumns, class Element>
struct SdmStage {
  float4 written[kRows], read[kRows];
  float beta;
  Element value[kColumns];
};

/// One group's walk over the tokens of a head, `s` of them counted from the first. A stage j is that of the tokens with
/// s % 3 == j.
template <int kRows, int kColumnLanes, int kColumns, int kAhead, class Element>
class SdmWalk {
 public:
  using Lanes = SdmLanes<kColumnLanes>;
  using Shared = SdmWalkShared<kRows, kColumnLanes, kColumns, kAhead>;
  using Stage = SdmStage<kRows, kColumns, Element>;

  __device__ SdmWalk(const SdmKernelArgs& args, Shared& shared) : call_(args.call), shared_(shared) {
    const std::int64_t head = blockIdx.y, begin = call_.batch.offsets[blockIdx.z],
                       pair = begin * call_.head_count + head;
    length_ = static_cast<int>(call_.batch.offsets[blockIdx.z + 1] - begin);
    writes_ = sdm_kept(call_.write_count, call_.side), reads_ = sdm_kept(call_.read_count, call_.side);
    column_ = Lanes::template column<kColumns>(blockIdx.x);
    is_inside_ = column_ < call_.value_dim;
    const std::int64_t first = head * call_.value_dim + column_;
    value_ = row_of<Element>(call_.v, begin) + first;
    out_ = row_of<Element>(call_.out, begin) + first;
    residual_ = call_.residual.data ? row_of<Element>(call_.residual, begin) + first : nullptr;
    beta_ = call_.beta + pair;
    const int lane = static_cast<int>(threadIdx.x) % kSdmGroup;
    write_list_ = reinterpret_cast<const float4*>(args.scratch.writes + pair * writes_) + lane;
    read_list_ = reinterpret_cast<const float4*>(args.scratch.reads + pair * reads_) + lane;
  }
  __device__ int length() const { return length_; }

  /// Lists of the first tokens; places beyond the sets stay empty.
  __device__ void begin() {
    for (int i = static_cast<int>(threadIdx.x) % kSdmGroup; i < Shared::kLists * Shared::kPlaces; i += kSdmGroup) {
      shared_.writes[i / Shared::kPlaces][i % Shared::kPlaces] = {0, 0, 0, 0, 0, -1};
      shared_.reads[i / Shared::kPlaces][i % Shared::kPlaces] = {0, 0, -1};
    }
    warp_barrier();
    for (int s = 0; s < kAhead; ++s) copy_lists(s);
    wait_for_copies<kAhead - 3>();
    warp_barrier();
  }

  /// Starts the copy of a token's lists, of one after the other; their place was last read before the last barrier.
  __device__ void copy_lists(int s) {
    if (s < length_) {
      copy_list<2 * Shared::kPlaces>(shared_.writes[s % Shared::kLists], write_list_, 2 * writes_);
      copy_list<Shared::kPlaces>(shared_.reads[s % Shared::kLists], read_list_, reads_);
      write_list_ += static_cast<std::int64_t>(2 * writes_) * call_.head_count;
      read_list_ += static_cast<std::int64_t>(reads_) * call_.head_count;
    }
    commit_copies();
  }

  /// Starts the loads of a token's rows, without those that are linked; of one token after the other.
  __device__ void load(int s, Stage& stage) {
    if (s >= length_) return;
    const SdmWrite* writes = shared_.writes[s % Shared::kLists] + Lanes::row();
    const SdmRead* reads = shared_.reads[s % Shared::kLists] + Lanes::row();
    SdmSource write_source[kRows], read_source[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      write_source[k] = is_inside_ ? writes[k * Lanes::kRowLanes].source : 0;
      read_source[k] = is_inside_ ? reads[k * Lanes::kRowLanes].source : 0;
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      stage.written[k] = stage.read[k] = {};
      if (write_source[k]) stage.written[k] = load_columns<kColumns>(write_source[k], column_);
      if (read_source[k]) stage.read[k] = load_columns<kColumns>(read_source[k], column_);
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) stage.value[c] = is_inside_ ? value_[c] : Element{};
    stage.beta = *beta_;
    value_ += call_.v.stride;
    beta_ += call_.head_count;
  }

  /// Predict, write, read: the token's rows have come, but for those that the last two tokens wrote. All lists but the
  /// last kAhead - 3 that were asked for have come when it ends.
  template <int kStage>
  __device__ void run(int s, Stage& stage) {
    const SdmWrite* writes = shared_.writes[s % Shared::kLists] + Lanes::row();
    const SdmRead* reads = shared_.reads[s % Shared::kLists] + Lanes::row();
    float written[kRows][kColumns], read[kRows][kColumns];
    float residual[kColumns] = {}, out[kColumns] = {}, value[kColumns];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const SdmWrite& write = writes[k * Lanes::kRowLanes];
      take_row<kStage>(write.source, write.link, stage.written[k], written[k]);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        written[k][c] *= write.decay;
        residual[c] += write.weight * written[k][c];
      }
    }
    Lanes::sum_rows(residual);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      value[c] = load_element(stage.value[c]);
      residual[c] = value[c] - residual[c];
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k)
      take_row<kStage>(reads[k * Lanes::kRowLanes].source, reads[k * Lanes::kRowLanes].link, stage.read[k], read[k]);
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const SdmWrite& write = writes[k * Lanes::kRowLanes];
      const float strength = stage.beta * write.weight;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        float& cell = written[k][c];
        cell += strength * (call_.slot_residual ? value[c] - cell : residual[c]);
      }
      round_columns<kColumns>(call_.row_dtype, written[k]);
      if (is_inside_ && write.target) store_columns<kColumns>(write.target, call_.row_dtype, column_, written[k]);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) out[c] += write.read_weight * written[k][c];
      store_values(tile<kStage>(k * Lanes::kRowLanes + Lanes::row()), written[k]);
    }
    wait_for_copies<kAhead - 3>();
    warp_barrier();
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const float weight = reads[k * Lanes::kRowLanes].weight;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) out[c] += weight * read[k][c];
    }
    Lanes::sum_rows(out);
    if (is_inside_ && Lanes::row() == 0) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) store_element(out_ + c, out[c]);
      if (residual_) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) store_element(residual_ + c, residual[c]);
      }
    }
    out_ += call_.out.stride;
    if (residual_) residual_ += call_.residual.stride;
  }

 private:
  template <int kMost>
  __device__ static void copy_list(void* to, const float4* from_lane, int pieces) {
    const int lane = static_cast<int>(threadIdx.x) % kSdmGroup;
#pragma unroll
    for (int i = 0; i < kMost; i += kSdmGroup) {
      if (lane + i < pieces) copy_16_async(static_cast<float4*>(to) + lane + i, from_lane + i, true);
    }
  }
  template <int kStage>
  __device__ float* tile(int place) const {
    return shared_.tiles[kStage] + (place * kColumnLanes + Lanes::column_lane()) * kColumns;
  }
  /// A row as f32: what was loaded, or what one of the two tokens before wrote.
  template <int kStage>
  __device__ void take_row(SdmSource source, std::int32_t link, const float4& piece, float (&x)[kColumns]) const {
    unpack_columns<kColumns>(sdm_kind(source), column_, piece, x);
    if (link < 0) return;
    const float* from =
        link < kSdmMaxCount ? tile<(kStage + 2) % 3>(link) : tile<(kStage + 1) % 3>(link - kSdmMaxCount);
    load_values(from, x);
  }

  const SdmArgs& call_;
  Shared& shared_;
  int length_, writes_, reads_;
  std::int64_t column_;
  bool is_inside_;
  const Element* value_;  ///< of the next token to load
  const float* beta_;
  Element *out_, *residual_;               ///< of the next token to run
  const float4 *write_list_, *read_list_;  ///< this lane's pieces of the next lists to copy
};

template <int kRows, int kColumnLanes, int kColumns, int kAhead, class Element>
__global__ void __launch_bounds__(64) sdm_walk_kernel(SdmKernelArgs args) {
  using Walk = SdmWalk<kRows, kColumnLanes, kColumns, kAhead, Element>;
  auto* groups = reinterpret_cast<typename Walk::Shared*>(dynamic_shared());
  Walk walk(args, groups[threadIdx.x / kSdmGroup]);
  const int length = walk.length();
  if (length == 0) return;
  typename Walk::Stage first, second, third;
  walk.begin();
  walk.load(0, first);
  walk.load(1, second);
  for (int s = 0; s < length; s += 3) {
    walk.load(s + 2, third);
    walk.copy_lists(s + kAhead);
    walk.template run<0>(s, first);
    if (s + 1 == length) break;
    walk.load(s + 3, first);
    walk.copy_lists(s + 1 + kAhead);
    walk.template run<1>(s + 1, second);
    if (s + 2 == length) break;
    walk.load(s + 4, second);
    walk.copy_lists(s + 2 + kAhead);
    walk.template run<2>(s + 2, third);
  }
}

}  // namespace cairn::gpu
