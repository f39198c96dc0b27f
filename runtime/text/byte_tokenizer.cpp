// Ids 0 to 255 are the bytes; BOS, EOS and padding above them give no text.
#include <array>

#include "runtime/text/tokenizer.h"

namespace cairn {
namespace {

constexpr std::int32_t kByteCount = 256;

class ByteTokenizer final : public Tokenizer {
 public:
  explicit ByteTokenizer(const TokenizerConfig& config) : bos_(config.bos), eos_(config.eos), end_(kByteCount) {
    for (std::size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<char>(static_cast<unsigned char>(i));
    for (std::int32_t id : {config.bos, config.eos}) end_ = id >= end_ ? id + 1 : end_;
    for (std::int32_t id : config.stop_tokens) end_ = id >= end_ ? id + 1 : end_;
  }

  /// Any bytes; nothing in the text is special.
  Status encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    ids.reserve(ids.size() + text.size());
    for (char c : text) ids.push_back(static_cast<unsigned char>(c));
    return {};
  }

  std::string_view token_bytes(std::int32_t id) const override {
    if (id >= 0 && id < kByteCount) return {&bytes_[static_cast<std::size_t>(id)], 1};
    if (id == bos_ && id >= 0) return "<bos>";
    if (id == eos_ && id >= 0) return "<eos>";
    return {};
  }

  bool is_special(std::int32_t id) const override { return id >= kByteCount; }
  std::int32_t id_end() const override { return end_; }

 private:
  std::array<char, kByteCount> bytes_{};
  std::int32_t bos_, eos_, end_;
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> make_byte_tokenizer(const TokenizerConfig& config) {
  return std::unique_ptr<Tokenizer>(std::make_unique<ByteTokenizer>(config));
}

}  // namespace cairn
