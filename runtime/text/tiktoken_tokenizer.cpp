// Kimi's tokenizer: tiktoken ranks ("base64 rank" lines) and its pattern (public-models.md 6.3). A piece that is a rank
// is one token; else the adjacent pair whose bytes together have the lowest rank merges first.
#include <algorithm>
#include <limits>
#include <mutex>
#include <queue>

#include "runtime/import/json_reader.h"
#include "runtime/text/added_tokens.h"
#include "runtime/text/piece_cache.h"
#include "runtime/text/split_pattern.h"
#include "runtime/text/text_splitter.h"
#include "runtime/text/tokenizer.h"

namespace cairn {
namespace {

constexpr std::int32_t kSpecialCount = 258;      // ids from the number of ranks on
constexpr std::size_t kMaxCharacters = 400'000;  // a text is cut here first
constexpr std::size_t kMaxRun = 25'000;          // and runs of blanks, or of other characters, here
constexpr std::int64_t kMaxRank = std::int64_t{1} << 22;

bool decode_base64(std::string_view text, std::string& bytes) {
  bytes.clear();
  std::uint32_t bits = 0;
  int count = 0;
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  for (const char c : text) {
    const std::uint32_t value = c >= 'A' && c <= 'Z'   ? static_cast<std::uint32_t>(c - 'A')
                                : c >= 'a' && c <= 'z' ? static_cast<std::uint32_t>(c - 'a' + 26)
                                : c >= '0' && c <= '9' ? static_cast<std::uint32_t>(c - '0' + 52)
                                : c == '+'             ? 62U
                                : c == '/'             ? 63U
                                                       : 64U;
    if (value == 64U) return false;
    bits = bits << 6 | value;
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<char>(bits >> count & 0xffU));
  }
  return !bytes.empty();
}

class TiktokenTokenizer : public Tokenizer {
 public:
  Status build(const TokenizerConfig& config);

  Status encode(std::string_view text, std::vector<std::int32_t>& ids) const override;
  std::string_view token_bytes(std::int32_t id) const override {
    return id >= 0 && static_cast<std::size_t>(id) < tokens_.size()
               ? std::string_view(tokens_[static_cast<std::size_t>(id)])
               : std::string_view();
  }
  bool is_special(std::int32_t id) const override {
    return id >= rank_count_ && id < id_end() && is_special_[static_cast<std::size_t>(id - rank_count_)];
  }
  std::int32_t id_end() const override { return static_cast<std::int32_t>(tokens_.size()); }

 private:
  Status read_rank(std::string_view line, std::size_t number);
  Status read_specials(const std::string& settings);
  struct Encoding {
    TextBudget& budget;
    PieceCache* cache;  ///< null: another call has it
    std::vector<std::int32_t>& ids;
  };
  Status encode_plain(std::string_view text, Encoding& encoding) const;
  void encode_known(std::string_view piece, Encoding& encoding) const;
  void encode_piece(std::string_view piece, std::vector<std::int32_t>& ids) const;
  std::int32_t rank_of(std::string_view bytes) const {
    const auto found = ranks_.find(bytes);
    return found == ranks_.end() ? std::numeric_limits<std::int32_t>::max() : found->second;
  }

  struct BytesHash {  // finds without making a string
    using is_transparent = void;
    std::size_t operator()(std::string_view bytes) const { return std::hash<std::string_view>()(bytes); }
  };
  std::unordered_map<std::string, std::int32_t, BytesHash, std::equal_to<>> ranks_;
  std::vector<std::string> tokens_;
  std::int32_t rank_count_ = 0;
  std::vector<bool>
      is_special_;  ///< by id - rank_count_; decoding leaves these out; what has no name of its own is one
  AddedTokens specials_;
  std::unique_ptr<TextSplitter> splitter_;
  mutable std::mutex cache_mutex_;
  mutable PieceCache cache_;  ///< of the call that holds the mutex; others go without
};

Status TiktokenTokenizer::read_rank(std::string_view line, std::size_t number) {
  const std::size_t blank = line.find(' ');
  std::string bytes;
  if (blank == std::string_view::npos || !decode_base64(line.substr(0, blank), bytes)) {
    return Status::format_error("tiktoken.model: line %zu is not 'base64 rank'", number);
  }
  std::int64_t rank = 0;
  for (const char c : line.substr(blank + 1)) {
    if (c < '0' || c > '9' || rank >= kMaxRank)
      return Status::format_error("tiktoken.model: line %zu: the rank is not a number below 2^22", number);
    rank = rank * 10 + (c - '0');
  }
  if (rank >= kMaxRank || blank + 1 == line.size())
    return Status::format_error("tiktoken.model: line %zu: the rank is not a number below 2^22", number);
  const auto index = static_cast<std::size_t>(rank);
  if (index >= tokens_.size()) tokens_.resize(index + 1);
  if (!tokens_[index].empty() || !ranks_.emplace(bytes, static_cast<std::int32_t>(rank)).second) {
    return Status::format_error("tiktoken.model: line %zu: rank %lld or its bytes stand twice", number,
                                static_cast<long long>(rank));
  }
  tokens_[index] = std::move(bytes);
  return {};
}

Status TiktokenTokenizer::read_specials(const std::string& settings) {
  rank_count_ = static_cast<std::int32_t>(tokens_.size());
  is_special_.assign(kSpecialCount, true);
  for (std::int32_t i = 0; i < kSpecialCount; ++i)
    tokens_.push_back("<|reserved_token_" + std::to_string(rank_count_ + i) + "|>");
  if (!settings.empty()) {
    CAIRN_TRY_ASSIGN(const nlohmann::json extra, parse_json(settings, "tokenizer_config.json"));
    const auto names = extra.is_object() ? extra.find("added_tokens_decoder") : extra.end();
    if (names != extra.end() && names->is_object()) {
      for (const auto& [name, entry] : names->items()) {
        const bool is_number =
            !name.empty() && name.size() <= 7 && name.find_first_not_of("0123456789") == std::string::npos;
        const std::int64_t id = is_number ? std::stoll(name) : -1;
        if (id < rank_count_ || id >= id_end() || !entry.is_object() || !entry.contains("content") ||
            !entry["content"].is_string()) {
          return Status::format_error(
              "tokenizer_config.json: added token '%.16s' is not a special token of this vocabulary", name.c_str());
        }
        const auto& content = entry["content"].get_ref<const std::string&>();
        if (content.size() > kMaxAddedTokenBytes) {
          return Status::limit_exceeded("tokenizer_config.json: added token %s has %zu bytes, more than %zu",
                                        name.c_str(), content.size(), kMaxAddedTokenBytes);
        }
        const auto special = entry.find("special");
        if (special != entry.end() && !special->is_boolean()) {
          return Status::format_error("tokenizer_config.json: added token %s: field 'special' is not true or false",
                                      name.c_str());
        }
        tokens_[static_cast<std::size_t>(id)] = content;
        is_special_[static_cast<std::size_t>(id - rank_count_)] = special != entry.end() && *special == true;
      }
    }
  }
  for (std::int32_t id = rank_count_; id < id_end(); ++id) {
    AddedToken token;
    token.content = tokens_[static_cast<std::size_t>(id)];
    token.id = id;
    specials_.add(token);
  }
  return {};
}

Status TiktokenTokenizer::build(const TokenizerConfig& config) {
  std::size_t number = 0;
  for (std::size_t at = 0; at < config.data.size();) {
    const std::size_t end = std::min(config.data.find('\n', at), config.data.size());
    std::string_view line(config.data.data() + at, end - at);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    ++number;
    if (!line.empty()) CAIRN_TRY(read_rank(line, number));
    at = end + 1;
  }
  if (tokens_.empty()) return Status::format_error("tiktoken.model: no ranks");
  CAIRN_TRY(read_specials(config.extra));
  CAIRN_TRY_ASSIGN(splitter_, TextSplitter::compile(kKimiPattern));
  return {};
}

void TiktokenTokenizer::encode_piece(std::string_view piece, std::vector<std::int32_t>& ids) const {
  constexpr std::int32_t kNone = std::numeric_limits<std::int32_t>::max();
  if (const std::int32_t whole = rank_of(piece); whole != kNone) {
    ids.push_back(whole);
    return;
  }
  struct Part {
    std::size_t end, previous;  ///< a part is [its own index, end)
  };
  struct Candidate {
    std::int32_t rank;
    std::size_t begin, middle, end;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : begin > other.begin;
    }
  };
  const std::size_t size = piece.size();
  std::vector<Part> parts(size);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto consider = [&](std::size_t begin) {
    const std::size_t middle = parts[begin].end;
    if (middle >= size) return;
    const std::size_t end = parts[middle].end;
    if (const std::int32_t rank = rank_of(piece.substr(begin, end - begin)); rank != kNone)
      candidates.push({rank, begin, middle, end});
  };
  for (std::size_t i = 0; i < size; ++i) parts[i] = {i + 1, i - 1};
  for (std::size_t i = 0; i + 1 < size; ++i) consider(i);
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    if (parts[best.begin].end != best.middle || parts[best.middle].end != best.end) continue;  // merged otherwise since
    parts[best.begin].end = best.end;
    parts[best.middle].end = 0;  // no part begins here any more
    if (best.end < size) parts[best.end].previous = best.begin;
    if (best.begin > 0) consider(parts[best.begin].previous);
    consider(best.begin);
  }
  for (std::size_t i = 0; i < size; i = parts[i].end) {
    const std::int32_t rank = rank_of(piece.substr(i, parts[i].end - i));
    if (rank != kNone) ids.push_back(rank);  // a byte without a rank gives nothing
  }
}

/// The ids of a piece that came before, or new ones.
void TiktokenTokenizer::encode_known(std::string_view piece, Encoding& encoding) const {
  std::vector<std::int32_t>& ids = encoding.ids;
  if (const auto known = encoding.cache ? encoding.cache->find(piece) : std::span<const std::int32_t>();
      !known.empty()) {
    ids.insert(ids.end(), known.begin(), known.end());
    return;
  }
  const std::size_t first = ids.size();
  encode_piece(piece, ids);
  if (encoding.cache) encoding.cache->put(piece, std::span(ids).subspan(first));
}

/// Cuts first at 400,000 characters and at runs of 25,000 (non-)blank ones, as the original does.
Status TiktokenTokenizer::encode_plain(std::string_view text, Encoding& encoding) const {
  std::size_t begin = 0, characters = 0, run = 0;
  bool was_blank = false;
  const auto flush = [&](std::size_t end) -> Status {
    if (end == begin) return {};
    const auto take = [&](std::string_view piece) { encode_known(piece, encoding); };
    CAIRN_TRY(splitter_->split(text.substr(begin, end - begin), encoding.budget, take));
    begin = end;
    return {};
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) == 0x80) continue;
    const bool is_blank = is_white_space(text.substr(i));
    if (characters == kMaxCharacters) {
      CAIRN_TRY(flush(i));
      characters = run = 0;
    }
    run = run > 0 && is_blank == was_blank ? run + 1 : 1;
    was_blank = is_blank;
    if (run > kMaxRun) {
      CAIRN_TRY(flush(i));
      run = 1;
    }
    ++characters;
  }
  return flush(text.size());
}

Status TiktokenTokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  if (const std::size_t bad = first_invalid_utf8(text); bad != std::string_view::npos) {
    return Status::invalid_argument("text is not UTF-8 at byte %zu", bad);
  }
  const std::unique_lock lock(cache_mutex_, std::try_to_lock);
  TextBudget budget(text.size());
  Encoding encoding{budget, lock.owns_lock() ? &cache_ : nullptr, ids};
  return specials_.split(
      text, budget, [&](std::string_view part) { return encode_plain(part, encoding); },
      [&](std::int32_t id) { ids.push_back(id); });
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> make_tiktoken_tokenizer(const TokenizerConfig& config) {
  auto tokenizer = std::make_unique<TiktokenTokenizer>();
  CAIRN_TRY(tokenizer->build(config));
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

}  // namespace cairn
