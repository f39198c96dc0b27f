// Byte-level BPE from a Hugging Face tokenizer.json (public-models.md 6.5): added tokens, NFC, a pattern that cuts the
// text, bytes as characters, merges. What the file asks for beyond that is refused by name.
#pragma once

#include <mutex>
#include <nlohmann/json.hpp>

#include "runtime/text/added_tokens.h"
#include "runtime/text/byte_pair_merges.h"
#include "runtime/text/piece_cache.h"
#include "runtime/text/text_splitter.h"
#include "runtime/text/tokenizer.h"

namespace cairn {

class BpeTokenizer : public Tokenizer {
 public:
  /// Reads tokenizer.json and tokenizer_config.json (bpe_tokenizer_file.cpp).
  Status build(const TokenizerConfig& config);

  Status encode(std::string_view text, std::vector<std::int32_t>& ids) const override;
  std::string_view token_bytes(std::int32_t id) const override {
    if (id < 0 || static_cast<std::size_t>(id) >= tokens_.size()) return {};
    return tokens_[static_cast<std::size_t>(id)];
  }
  bool is_special(std::int32_t id) const override {
    return id >= 0 && static_cast<std::size_t>(id) < is_special_.size() && is_special_[static_cast<std::size_t>(id)];
  }
  std::int32_t id_end() const override { return static_cast<std::int32_t>(tokens_.size()); }

 private:
  Status read_normalizer(const nlohmann::json& root);
  Status read_pre_tokenizer(const nlohmann::json& root);
  Status read_split(const nlohmann::json& step);
  Status read_vocabulary(const nlohmann::json& model);
  Status read_merges(const nlohmann::json& model);
  Status read_merge(const nlohmann::json& merge, std::int32_t rank);
  Status read_added_tokens(const nlohmann::json& root, const std::string& settings);
  Status add_token(const nlohmann::json& entry, std::int64_t id);
  Result<std::int32_t> id_of(const std::string& token, std::int32_t rank) const;
  Status set_token(std::int64_t id, std::string bytes);
  struct Encoding;  ///< one call's budget, cache and ids
  Status encode_plain(std::string_view text, Encoding& encoding) const;
  Status encode_pieces(std::string_view text, Encoding& encoding) const;
  void encode_piece(std::string_view piece, std::vector<std::int32_t>& ids) const;

  AddedTokens raw_added_, normalized_added_;
  bool has_nfc_ = false, ignore_merges_ = false;
  std::unique_ptr<TextSplitter> splitter_;  ///< null: the text is one piece
  BytePairMerges merges_;
  std::unordered_map<std::string, std::int32_t> id_of_bytes_;
  std::vector<std::string> tokens_;
  std::vector<bool> is_special_;
  std::unordered_map<std::string, std::int32_t> vocabulary_;  ///< while building
  mutable std::mutex cache_mutex_;
  mutable PieceCache cache_;  ///< of the call that holds the mutex; others go without
};

}  // namespace cairn
