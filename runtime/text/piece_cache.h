// Token ids of short pieces that were seen before: most words of a text come again.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace cairn {

/// A table of fixed size in which a new piece takes the place of an old one. One user at a time.
class PieceCache {
 public:
  /// The ids of the piece, or nothing. Valid until put().
  std::span<const std::int32_t> find(std::string_view piece) const {
    if (piece.size() > kKeyBytes || entries_.empty()) return {};
    const Entry& entry = entries_[hash(piece)];
    if (entry.key_bytes != piece.size() || std::memcmp(entry.key, piece.data(), piece.size()) != 0) return {};
    return {entry.ids, entry.id_count};
  }

  void put(std::string_view piece, std::span<const std::int32_t> ids) {
    if (piece.empty() || piece.size() > kKeyBytes || ids.empty() || ids.size() > kIds) return;
    if (entries_.empty()) entries_.resize(kEntries);
    Entry& entry = entries_[hash(piece)];
    std::memcpy(entry.key, piece.data(), piece.size());
    std::memcpy(entry.ids, ids.data(), ids.size_bytes());
    entry.key_bytes = static_cast<std::uint8_t>(piece.size());
    entry.id_count = static_cast<std::uint8_t>(ids.size());
  }

 private:
  static constexpr std::size_t kKeyBytes = 22, kIds = 10, kEntries = std::size_t{1} << 15;  // 2 MiB
  struct Entry {
    std::uint8_t key_bytes = 0, id_count = 0;
    char key[kKeyBytes];
    std::int32_t ids[kIds];
  };

  static std::size_t hash(std::string_view piece) {
    std::uint64_t words[3] = {};
    std::memcpy(words, piece.data(), piece.size());
    std::uint64_t mixed = (words[0] ^ piece.size()) * 0x9e3779b97f4a7c15U;
    mixed = (mixed ^ mixed >> 32 ^ words[1]) * 0xbf58476d1ce4e5b9U;
    mixed = (mixed ^ mixed >> 32 ^ words[2]) * 0x94d049bb133111ebU;
    return static_cast<std::size_t>(mixed >> 49);
  }

  std::vector<Entry> entries_;
};

}  // namespace cairn
