// Byte-pair merging of one pre-token: the pair of the lowest rank first, leftmost among equals, until none is left.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace cairn {

class BytePairMerges {
 public:
  struct Merge {
    std::int32_t rank, merged;
  };
  /// The token of a single byte; -1: none (the byte is dropped).
  std::int32_t byte_token[256];

  BytePairMerges() {
    for (std::int32_t& token : byte_token) token = -1;
  }
  void reserve(std::size_t count) { merges_.reserve(count); }
  /// The first rank of a pair counts.
  void add(std::int32_t left, std::int32_t right, Merge merge) { merges_.emplace(key(left, right), merge); }

  /// Appends the tokens of `piece`. O(n log n).
  void apply(std::string_view piece, std::vector<std::int32_t>& ids) const;

 private:
  static std::uint64_t key(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }
  const Merge* find(std::int32_t left, std::int32_t right) const {
    const auto found = merges_.find(key(left, right));
    return found == merges_.end() ? nullptr : &found->second;
  }
  void apply_short(std::vector<std::int32_t>& symbols) const;
  void apply_long(std::vector<std::int32_t>& symbols) const;

  std::unordered_map<std::uint64_t, Merge> merges_;
};

}  // namespace cairn
