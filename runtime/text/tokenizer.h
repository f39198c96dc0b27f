// Text to token ids and back. Immutable once made, thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/model_description.h"
#include "runtime/support/status.h"

namespace cairn {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Appends the ids of `text`; adds no BOS. Special tokens that stand in the text are matched as units.
  /// INVALID_ARGUMENT: the text is not UTF-8 (byte vocabularies take any bytes).
  virtual Status encode(std::string_view text, std::vector<std::int32_t>& ids) const = 0;

  /// The bytes that a token stands for, maybe part of a character; of a special token its name, for example
  /// "<|im_end|>". Empty: no such id. Valid as long as the tokenizer.
  virtual std::string_view token_bytes(std::int32_t id) const = 0;

  /// A control token: it gives no text unless asked for.
  virtual bool is_special(std::int32_t id) const = 0;

  /// Ids are below this (some may stand for nothing).
  virtual std::int32_t id_end() const = 0;

  /// The bytes of all tokens, one after the other. Special tokens give none when they are skipped.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special) const;
};

/// The tokenizer that a model's description asks for. UNSUPPORTED: kNone, or a pre-tokenizer, normalizer or model that
/// is not known here, by name; FORMAT, LIMIT_EXCEEDED: bad data. What it was made from is not kept.
Result<std::unique_ptr<Tokenizer>> make_tokenizer(const TokenizerConfig& config);

/// kBytes: ids 0-255 are the bytes (byte_tokenizer.cpp).
Result<std::unique_ptr<Tokenizer>> make_byte_tokenizer(const TokenizerConfig& config);
/// kBpe: a Hugging Face tokenizer.json (bpe_tokenizer.cpp).
Result<std::unique_ptr<Tokenizer>> make_bpe_tokenizer(const TokenizerConfig& config);
/// kTiktoken: ranks, with the pattern of Kimi (tiktoken_tokenizer.cpp).
Result<std::unique_ptr<Tokenizer>> make_tiktoken_tokenizer(const TokenizerConfig& config);

}  // namespace cairn
