#include "runtime/text/bpe_tokenizer.h"

namespace cairn {

struct BpeTokenizer::Encoding {
  TextBudget& budget;
  PieceCache* cache;  ///< null: another call has it
  std::vector<std::int32_t>& ids;
};

void BpeTokenizer::encode_piece(std::string_view piece, std::vector<std::int32_t>& ids) const {
  if (ignore_merges_) {
    if (const auto found = id_of_bytes_.find(std::string(piece)); found != id_of_bytes_.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  merges_.apply(piece, ids);
}

Status BpeTokenizer::encode_pieces(std::string_view text, Encoding& encoding) const {
  PieceCache* cache = encoding.cache;
  std::vector<std::int32_t>& ids = encoding.ids;
  if (text.empty()) return {};
  if (!splitter_) {
    encode_piece(text, ids);
    return {};
  }
  return splitter_->split(text, encoding.budget, [&](std::string_view piece) {
    if (const auto known = cache ? cache->find(piece) : std::span<const std::int32_t>(); !known.empty()) {
      ids.insert(ids.end(), known.begin(), known.end());
      return;
    }
    const std::size_t first = ids.size();
    encode_piece(piece, ids);
    if (cache) cache->put(piece, std::span(ids).subspan(first));
  });
}

/// Text without raw added tokens: normalised, then searched for the others.
Status BpeTokenizer::encode_plain(std::string_view text, Encoding& encoding) const {
  std::string composed;
  if (has_nfc_) {
    CAIRN_TRY_ASSIGN(composed, to_nfc(text));
    text = composed;
  }
  return normalized_added_.split(
      text, encoding.budget, [&](std::string_view part) { return encode_pieces(part, encoding); },
      [&](std::int32_t id) { encoding.ids.push_back(id); });
}

Status BpeTokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  if (const std::size_t bad = first_invalid_utf8(text); bad != std::string_view::npos) {
    return Status::invalid_argument("text is not UTF-8 at byte %zu", bad);
  }
  const std::unique_lock lock(cache_mutex_, std::try_to_lock);
  TextBudget budget(text.size());
  Encoding encoding{budget, lock.owns_lock() ? &cache_ : nullptr, ids};
  return raw_added_.split(
      text, budget, [&](std::string_view part) { return encode_plain(part, encoding); },
      [&](std::int32_t id) { ids.push_back(id); });
}

Result<std::unique_ptr<Tokenizer>> make_bpe_tokenizer(const TokenizerConfig& config) {
  auto tokenizer = std::make_unique<BpeTokenizer>();
  CAIRN_TRY(tokenizer->build(config));
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

}  // namespace cairn
