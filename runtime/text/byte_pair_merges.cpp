#include "runtime/text/byte_pair_merges.h"

#include <limits>
#include <queue>

namespace cairn {
namespace {

constexpr std::size_t kShortPiece = 24;  // scanning beats a heap up to about here

}  // namespace

void BytePairMerges::apply(std::string_view piece, std::vector<std::int32_t>& ids) const {
  std::vector<std::int32_t> symbols;
  symbols.reserve(piece.size());
  for (const char c : piece) {
    if (const std::int32_t token = byte_token[static_cast<unsigned char>(c)]; token >= 0) symbols.push_back(token);
  }
  symbols.size() <= kShortPiece ? apply_short(symbols) : apply_long(symbols);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

void BytePairMerges::apply_short(std::vector<std::int32_t>& symbols) const {
  for (;;) {
    Merge best{std::numeric_limits<std::int32_t>::max(), -1};
    std::size_t best_at = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const Merge* merge = find(symbols[i], symbols[i + 1]);
      if (merge && merge->rank < best.rank) {
        best = *merge;
        best_at = i;
      }
    }
    if (best.merged < 0) return;
    symbols[best_at] = best.merged;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

void BytePairMerges::apply_long(std::vector<std::int32_t>& symbols) const {
  struct Candidate {
    std::int32_t rank, merged;
    std::size_t left, right;
    std::int32_t left_symbol, right_symbol;
    bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : left > other.left; }
  };
  constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::vector<std::size_t> next(symbols.size()), previous(symbols.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto consider = [&](std::size_t left, std::size_t right) {
    if (left == kNone || right == kNone) return;
    if (const Merge* merge = find(symbols[left], symbols[right])) {
      candidates.push({merge->rank, merge->merged, left, right, symbols[left], symbols[right]});
    }
  };
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    next[i] = i + 1 < symbols.size() ? i + 1 : kNone;
    previous[i] = i > 0 ? i - 1 : kNone;
  }
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) consider(i, i + 1);
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    const bool is_stale = next[best.left] != best.right || symbols[best.left] != best.left_symbol ||
                          symbols[best.right] != best.right_symbol;
    if (is_stale) continue;
    symbols[best.left] = best.merged;
    symbols[best.right] = -1;
    next[best.left] = next[best.right];
    if (next[best.left] != kNone) previous[next[best.left]] = best.left;
    consider(previous[best.left], best.left);
    consider(best.left, next[best.left]);
  }
  std::erase(symbols, -1);
}

}  // namespace cairn
