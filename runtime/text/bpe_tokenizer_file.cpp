// Building a BpeTokenizer from its files.
#include <algorithm>

#include "runtime/import/json_reader.h"
#include "runtime/text/bpe_tokenizer.h"
#include "runtime/text/split_pattern.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxId = std::int64_t{1} << 22;

/// Byte-level characters: printable bytes stand for themselves, the other 68 for U+0100 and up.
std::int32_t byte_of_character(std::uint32_t c) {
  const auto is_printable = [](std::uint32_t b) {
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
  };
  if (c < 256) return is_printable(c) ? static_cast<std::int32_t>(c) : -1;
  std::uint32_t number = 0x100;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    if (is_printable(byte)) continue;
    if (number++ == c) return static_cast<std::int32_t>(byte);
  }
  return -1;
}

class ByteCharacters {
 public:
  ByteCharacters() {
    for (std::uint32_t c = 0; c < 0x144; ++c) byte_[c] = byte_of_character(c);
  }
  /// The bytes that a vocabulary entry stands for; false: a character outside the alphabet.
  bool to_bytes(const std::string& text, std::string& bytes) const {
    bytes.clear();
    for (std::size_t i = 0; i < text.size();) {
      const auto first = static_cast<unsigned char>(text[i]);
      std::uint32_t c = first;
      std::size_t length = 1;
      if (first >= 0x80) {  // the JSON reader has checked the UTF-8; the alphabet has two-byte characters only
        if ((first & 0xe0) != 0xc0 || i + 1 >= text.size()) return false;
        c = (first & 0x1fU) << 6 | (static_cast<unsigned char>(text[i + 1]) & 0x3fU);
        length = 2;
      }
      if (c >= 0x144 || byte_[c] < 0) return false;
      bytes.push_back(static_cast<char>(byte_[c]));
      i += length;
    }
    return true;
  }

 private:
  std::int32_t byte_[0x144];
};

bool is_null_or(const json& object, const char* key, const json& wanted) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() || *found == wanted;
}

Status wrong_type(const char* key, const char* wanted) {
  return Status::format_error("tokenizer.json: field '%s' is not %s", key, wanted);
}

/// A field that may be absent. FORMAT: it is of another type.
Result<bool> read_flag(const json& object, const char* key, bool fallback) {
  const auto found = object.find(key);
  if (found == object.end()) return fallback;
  if (!found->is_boolean()) return wrong_type(key, "true or false");
  return found->get<bool>();
}
Result<std::string> read_text(const json& object, const char* key, const char* fallback) {
  const auto found = object.find(key);
  if (found == object.end()) return std::string(fallback);
  if (!found->is_string()) return wrong_type(key, "a string");
  return found->get<std::string>();
}

/// Empty: not an object, or one without a type.
std::string type_of(const json& object) {
  const auto found = object.find("type");
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// The steps of a Sequence, or the one step that `object` is.
Result<std::vector<const json*>> steps_of(const json& object, const char* key) {
  std::vector<const json*> steps;
  if (type_of(object) != "Sequence") {
    steps.push_back(&object);
    return steps;
  }
  const auto list = object.find(key);
  if (list == object.end()) return steps;
  if (!list->is_array()) return wrong_type(key, "an array");
  for (const json& step : *list) steps.push_back(&step);
  return steps;
}

}  // namespace

Status BpeTokenizer::build(const TokenizerConfig& config) {
  CAIRN_TRY(check_token_lengths(config.data.data(), config.data.size(), "tokenizer.json"));
  CAIRN_TRY_ASSIGN(const json root, parse_json(config.data, "tokenizer.json"));
  if (!root.is_object() || !root.contains("model") || !root["model"].is_object()) {
    return Status::format_error("tokenizer.json: no model");
  }
  const json& model = root["model"];
  CAIRN_TRY_ASSIGN(const std::string type, read_text(model, "type", "BPE"));
  if (type != "BPE") {
    return Status::unsupported("tokenizer.json: model type '%s' is not supported (supported: BPE)", type.c_str());
  }
  for (const char* key : {"unk_token", "dropout"}) {
    if (!is_null_or(model, key, nullptr)) return Status::unsupported("tokenizer.json: model.%s is not supported", key);
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!is_null_or(model, key, "")) return Status::unsupported("tokenizer.json: model.%s is not supported", key);
  }
  if (!is_null_or(model, "byte_fallback", false))
    return Status::unsupported("tokenizer.json: model.byte_fallback is not supported");
  ignore_merges_ = !is_null_or(model, "ignore_merges", false);
  CAIRN_TRY(read_normalizer(root));
  CAIRN_TRY(read_pre_tokenizer(root));
  if (const auto decoder = root.find("decoder");
      decoder != root.end() && !decoder->is_null() && type_of(*decoder) != "ByteLevel") {
    return Status::unsupported("tokenizer.json: decoder '%s' is not supported (supported: ByteLevel)",
                               type_of(*decoder).c_str());
  }
  CAIRN_TRY(read_vocabulary(model));
  CAIRN_TRY(read_merges(model));
  CAIRN_TRY(read_added_tokens(root, config.extra));
  vocabulary_ = {};
  return {};
}

Status BpeTokenizer::read_normalizer(const json& root) {
  const auto normalizer = root.find("normalizer");
  if (normalizer == root.end() || normalizer->is_null()) return {};
  CAIRN_TRY_ASSIGN(const std::vector<const json*> steps, steps_of(*normalizer, "normalizers"));
  for (const json* step : steps) {
    if (type_of(*step) != "NFC") {
      return Status::unsupported("tokenizer.json: normalizer '%s' is not supported (supported: NFC)",
                                 type_of(*step).c_str());
    }
    has_nfc_ = true;
  }
  return {};
}

Status BpeTokenizer::read_pre_tokenizer(const json& root) {
  const auto found = root.find("pre_tokenizer");
  if (found == root.end() || found->is_null())
    return Status::unsupported("tokenizer.json: no pre_tokenizer (a ByteLevel one is needed)");
  CAIRN_TRY_ASSIGN(const std::vector<const json*> steps, steps_of(*found, "pretokenizers"));
  bool has_bytes = false;
  for (const json* step : steps) {
    const std::string type = type_of(*step);
    if (type == "Split" && !splitter_ && !has_bytes) {
      CAIRN_TRY(read_split(*step));
    } else if (type == "ByteLevel" && !has_bytes) {
      has_bytes = true;
      CAIRN_TRY_ASSIGN(const bool adds_space, read_flag(*step, "add_prefix_space", true));
      CAIRN_TRY_ASSIGN(const bool uses_regex, read_flag(*step, "use_regex", true));
      if (adds_space) return Status::unsupported("tokenizer.json: ByteLevel.add_prefix_space is not supported");
      if (!uses_regex) continue;
      if (splitter_) return Status::unsupported("tokenizer.json: Split before ByteLevel.use_regex is not supported");
      CAIRN_TRY_ASSIGN(splitter_, TextSplitter::compile(kGpt2Pattern));
    } else {
      return Status::unsupported("tokenizer.json: pre_tokenizer '%s' is not supported here", type.c_str());
    }
  }
  if (!has_bytes) return Status::unsupported("tokenizer.json: no ByteLevel pre_tokenizer");
  return {};
}

Status BpeTokenizer::read_split(const json& step) {
  const auto pattern = step.find("pattern");
  if (pattern == step.end() || !pattern->is_object() || !pattern->contains("Regex") ||
      !(*pattern)["Regex"].is_string()) {
    return Status::unsupported("tokenizer.json: Split without a Regex pattern is not supported");
  }
  CAIRN_TRY_ASSIGN(const std::string behavior, read_text(step, "behavior", ""));
  CAIRN_TRY_ASSIGN(const bool is_inverted, read_flag(step, "invert", false));
  const bool drops_gaps = behavior == "Removed" && is_inverted;  // what is no match is removed
  if (behavior != "Isolated" && !drops_gaps) {
    return Status::unsupported(
        "tokenizer.json: Split with behavior '%s'%s is not supported (supported: Isolated; Removed, inverted)",
        behavior.c_str(), is_inverted ? ", inverted," : "");
  }
  CAIRN_TRY_ASSIGN(splitter_, TextSplitter::compile((*pattern)["Regex"].get<std::string>(), drops_gaps));
  return {};
}

Status BpeTokenizer::set_token(std::int64_t id, std::string bytes) {
  if (id < 0 || id >= kMaxId)
    return Status::format_error("tokenizer.json: id %lld is outside [0, %lld)", static_cast<long long>(id),
                                static_cast<long long>(kMaxId));
  const auto index = static_cast<std::size_t>(id);
  if (index >= tokens_.size()) {
    tokens_.resize(index + 1);
    is_special_.resize(index + 1, false);
  }
  tokens_[index] = std::move(bytes);
  return {};
}

Status BpeTokenizer::read_vocabulary(const json& model) {
  const auto vocabulary = model.find("vocab");
  if (vocabulary == model.end() || !vocabulary->is_object() || vocabulary->empty())
    return Status::format_error("tokenizer.json: no model.vocab");
  const ByteCharacters characters;
  std::string bytes;
  vocabulary_.reserve(vocabulary->size());
  for (const auto& [token, id] : vocabulary->items()) {
    if (!id.is_number_integer()) return Status::format_error("tokenizer.json: the id of a token is not an integer");
    const auto number = id.get<std::int64_t>();
    if (number >= 0 && static_cast<std::size_t>(number) < tokens_.size() &&
        !tokens_[static_cast<std::size_t>(number)].empty()) {
      return Status::format_error("tokenizer.json: id %lld is given twice", static_cast<long long>(number));
    }
    const bool is_byte_level = characters.to_bytes(token, bytes);
    CAIRN_TRY(
        set_token(number, is_byte_level ? bytes : token));  // names of special tokens may stand in the vocabulary too
    vocabulary_.emplace(token, static_cast<std::int32_t>(number));
    if (!is_byte_level) continue;
    id_of_bytes_.emplace(bytes, static_cast<std::int32_t>(number));
    if (bytes.size() == 1) merges_.byte_token[static_cast<unsigned char>(bytes[0])] = static_cast<std::int32_t>(number);
  }
  return {};
}

Result<std::int32_t> BpeTokenizer::id_of(const std::string& token, std::int32_t rank) const {
  const auto found = vocabulary_.find(token);
  if (found == vocabulary_.end())
    return Status::format_error("tokenizer.json: merge %d: '%.64s' is not in the vocabulary", rank, token.c_str());
  return found->second;
}

Status BpeTokenizer::read_merge(const json& merge, std::int32_t rank) {
  std::string left, right;
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const std::size_t blank = text.find(' ');
    if (blank == std::string::npos || text.find(' ', blank + 1) != std::string::npos) {
      return Status::format_error("tokenizer.json: merge %d is not two tokens and one blank", rank);
    }
    left = text.substr(0, blank);
    right = text.substr(blank + 1);
  } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    left = merge[0].get<std::string>();
    right = merge[1].get<std::string>();
  } else {
    return Status::format_error("tokenizer.json: merge %d is neither a string nor a pair of strings", rank);
  }
  CAIRN_TRY_ASSIGN(const std::int32_t left_id, id_of(left, rank));
  CAIRN_TRY_ASSIGN(const std::int32_t right_id, id_of(right, rank));
  CAIRN_TRY_ASSIGN(const std::int32_t merged, id_of(left + right, rank));
  merges_.add(left_id, right_id, {rank, merged});
  return {};
}

Status BpeTokenizer::read_merges(const json& model) {
  const auto merges = model.find("merges");
  if (merges == model.end() || !merges->is_array()) return Status::format_error("tokenizer.json: no model.merges");
  if (merges->size() > static_cast<std::size_t>(kMaxId))
    return Status::limit_exceeded("tokenizer.json: %zu merges, more than %lld", merges->size(),
                                  static_cast<long long>(kMaxId));
  merges_.reserve(merges->size());
  std::int32_t rank = 0;
  for (const json& merge : *merges) CAIRN_TRY(read_merge(merge, rank++));
  return {};
}

Status BpeTokenizer::add_token(const json& entry, std::int64_t id) {
  if (!entry.is_object() || !entry.contains("content") || !entry["content"].is_string())
    return Status::format_error("tokenizer.json: an added token has no content");
  AddedToken token;
  token.content = entry["content"].get<std::string>();
  token.id = static_cast<std::int32_t>(id);
  if (token.content.size() > kMaxAddedTokenBytes) {
    return Status::limit_exceeded("tokenizer.json: added token '%.40s...' has %zu bytes, more than %zu",
                                  token.content.c_str(), token.content.size(), kMaxAddedTokenBytes);
  }
  CAIRN_TRY_ASSIGN(token.single_word, read_flag(entry, "single_word", false));
  CAIRN_TRY_ASSIGN(token.lstrip, read_flag(entry, "lstrip", false));
  CAIRN_TRY_ASSIGN(token.rstrip, read_flag(entry, "rstrip", false));
  CAIRN_TRY_ASSIGN(token.special, read_flag(entry, "special", false));
  CAIRN_TRY_ASSIGN(const bool is_normalized, read_flag(entry, "normalized", !token.special));
  CAIRN_TRY(set_token(id, token.content));
  is_special_[static_cast<std::size_t>(id)] = token.special;
  if (is_normalized && has_nfc_) {
    CAIRN_TRY_ASSIGN(token.content, to_nfc(token.content));  // the text that it is looked for in is composed too
  }
  (is_normalized ? normalized_added_ : raw_added_).add(token);
  return {};
}

/// Those of tokenizer.json, then those that only tokenizer_config.json names.
Status BpeTokenizer::read_added_tokens(const json& root, const std::string& settings) {
  std::vector<std::int64_t> seen;
  if (const auto added = root.find("added_tokens"); added != root.end() && added->is_array()) {
    for (const json& entry : *added) {
      if (!entry.is_object() || !entry.contains("id") || !entry["id"].is_number_integer())
        return Status::format_error("tokenizer.json: an added token has no id");
      seen.push_back(entry["id"].get<std::int64_t>());
      CAIRN_TRY(add_token(entry, seen.back()));
    }
  }
  if (settings.empty()) return {};
  CAIRN_TRY_ASSIGN(const json extra, parse_json(settings, "tokenizer_config.json"));
  const auto more = extra.is_object() ? extra.find("added_tokens_decoder") : extra.end();
  if (more == extra.end() || !more->is_object()) return {};
  std::sort(seen.begin(), seen.end());
  for (const auto& [name, entry] : more->items()) {
    if (name.empty() || name.size() > 7 || name.find_first_not_of("0123456789") != std::string::npos) {
      return Status::format_error("tokenizer_config.json: added token id '%.16s' is not a number", name.c_str());
    }
    const std::int64_t id = std::stoll(name);
    if (!std::binary_search(seen.begin(), seen.end(), id)) CAIRN_TRY(add_token(entry, id));
  }
  return {};
}

}  // namespace cairn
