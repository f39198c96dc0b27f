#include "runtime/text/tokenizer.h"

namespace cairn {

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const std::int32_t id : ids) {
    if (!skip_special || !is_special(id)) bytes += token_bytes(id);
  }
  return bytes;
}

Result<std::unique_ptr<Tokenizer>> make_tokenizer(const TokenizerConfig& config) {
  switch (config.kind) {
    case TokenizerKind::kNone: break;
    case TokenizerKind::kBytes: return make_byte_tokenizer(config);
    case TokenizerKind::kBpe: return make_bpe_tokenizer(config);
    case TokenizerKind::kTiktoken: return make_tiktoken_tokenizer(config);
  }
  return Status::unsupported("the model carries no tokenizer");
}

}  // namespace cairn
