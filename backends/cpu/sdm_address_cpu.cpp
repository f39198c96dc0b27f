#include "backends/cpu/sdm_address_cpu.h"

#include <algorithm>
#include <cmath>

namespace cairn::cpu {
namespace {

/// A score that is not a number ranks last, as in RecurrentKernels::largest_places.
double rankable(float score) { return score == score ? score : -INFINITY; }

/// Heap order: the largest score on top, the lower slot among equals.
bool stands_behind(const SdmCandidate& a, const SdmCandidate& b) {
  return a.score < b.score || (a.score == b.score && a.slot > b.slot);
}

/// The best sums of pairs, best first. Rows and columns are sorted, so the next pair of a row is the one with the next
/// column, and a row need not be looked at before the first pair of the row above it has been taken.
class PairMerge {
 public:
  PairMerge(const SdmAddressArgs& args, const SdmAddressWork& work, std::int32_t kept) : a_(args), w_(work), kept_(kept) {
    push(0, 0);
  }

  SdmCandidate take() {
    std::pop_heap(w_.frontier, w_.frontier + size_, stands_behind);
    const SdmCandidate best = w_.frontier[--size_];
    if (best.column_place + 1 < kept_) push(best.row_place, best.column_place + 1);
    if (best.column_place == 0 && best.row_place + 1 < kept_) push(best.row_place + 1, 0);
    return best;
  }

 private:
  void push(std::int32_t row_place, std::int32_t column_place) {
    const std::int32_t row = w_.rows[row_place], column = w_.columns[column_place];
    w_.frontier[size_++] = {rankable(a_.scores[row]) + rankable(a_.scores[a_.side + column]), row * a_.side + column,
                            row_place, column_place};
    std::push_heap(w_.frontier, w_.frontier + size_, stands_behind);
  }

  const SdmAddressArgs& a_;
  const SdmAddressWork& w_;
  const std::int32_t kept_;
  std::int32_t size_ = 0;
};

}  // namespace

std::int32_t sdm_slots_held(std::int32_t side, std::int32_t count) {
  return static_cast<std::int32_t>(std::min<std::int64_t>(count, static_cast<std::int64_t>(side) * side));
}

SdmAddressWork carve_sdm_address_work(std::int32_t side, std::int32_t count, ScratchLayout& layout) {
  const std::size_t kept = std::min(count, side);
  SdmAddressWork work;
  work.rows = layout.take<std::int32_t>(kept);
  work.columns = layout.take<std::int32_t>(kept);
  work.frontier = layout.take<SdmCandidate>(kept + 1);
  work.search = layout.take<float>(3 * static_cast<std::size_t>(side) + 64);
  return work;
}

void find_sdm_slots(const RecurrentKernels& kernels, const SdmAddressArgs& a, const SdmAddressWork& work,
                    std::int32_t* slots, float* weights) {
  const std::int32_t kept = std::min(a.count, a.side), held = sdm_slots_held(a.side, a.count);
  kernels.largest_places(a.side, kept, a.scores, work.search, work.rows);
  kernels.largest_places(a.side, kept, a.scores + a.side, work.search, work.columns);
  PairMerge merge(a, work, kept);
  double best = 0, total = 0;
  for (std::int32_t i = 0; i < held; ++i) {
    const SdmCandidate candidate = merge.take();
    if (i == 0) best = candidate.score;
    slots[i] = candidate.slot;
    weights[i] = static_cast<float>(static_cast<double>(a.scale) * (candidate.score - best));
  }
  kernels.exponentials(held, weights, weights);
  for (std::int32_t i = 0; i < held; ++i) total += weights[i];
  for (std::int32_t i = 0; i < held; ++i) weights[i] = static_cast<float>(weights[i] / total);
}

}  // namespace cairn::cpu
