#include "runtime/import/safetensors_reader.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "runtime/import/json_reader.h"
#include "runtime/support/checked_math.h"
#include "runtime/support/file.h"

namespace cairn {
namespace {

using Json = nlohmann::json;
using ull = unsigned long long;

constexpr std::size_t kMaxNameBytes = 1024;
constexpr std::size_t kMaxRank = 8;
constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{64} << 20;

struct TypeInfo {
  SafetensorsType type;
  const char* name;
  int bytes;
};
constexpr std::array<TypeInfo, 15> kTypes = {{{SafetensorsType::kF64, "F64", 8},
                                              {SafetensorsType::kF32, "F32", 4},
                                              {SafetensorsType::kF16, "F16", 2},
                                              {SafetensorsType::kBF16, "BF16", 2},
                                              {SafetensorsType::kF8E4M3, "F8_E4M3", 1},
                                              {SafetensorsType::kF8E5M2, "F8_E5M2", 1},
                                              {SafetensorsType::kI64, "I64", 8},
                                              {SafetensorsType::kI32, "I32", 4},
                                              {SafetensorsType::kI16, "I16", 2},
                                              {SafetensorsType::kI8, "I8", 1},
                                              {SafetensorsType::kU64, "U64", 8},
                                              {SafetensorsType::kU32, "U32", 4},
                                              {SafetensorsType::kU16, "U16", 2},
                                              {SafetensorsType::kU8, "U8", 1},
                                              {SafetensorsType::kBool, "BOOL", 1}}};

/// One entry of a header as it is written there.
struct HeaderEntry {
  std::string name;
  SafetensorsType type = SafetensorsType::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;
};

/// What both JSON files have in common: everything that is not expected is an error, found while parsing, without a
/// tree.
class StrictEvents : public nlohmann::json_sax<Json> {
 public:
  Status status() const { return status_; }
  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_integer(std::int64_t value) override {
    return value >= 0 ? number_unsigned(static_cast<std::uint64_t>(value)) : refuse("a negative number");
  }
  bool number_unsigned(std::uint64_t) override { return refuse("a number"); }
  bool number_float(double, const std::string&) override { return refuse("a fraction"); }
  bool string(std::string&) override { return refuse("a string"); }
  bool binary(Json::binary_t&) override { return refuse("binary data"); }
  bool start_array(std::size_t) override { return refuse("an array"); }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return fail(Status::format_error("%s: not valid JSON at byte %zu", label_.c_str(), position));
  }

 protected:
  explicit StrictEvents(std::string label) : label_(std::move(label)) {}
  bool fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
    return false;
  }
  bool refuse(const char* what) {
    return fail(Status::format_error("%s: '%.100s' holds %s where none may be", label_.c_str(), place().c_str(), what));
  }
  virtual std::string place() const = 0;
  std::string label_;
  Status status_;
};

/// {"__metadata__": {text: text}, name: {"dtype": text, "shape": [n...], "data_offsets": [begin, end]}, ...}
class HeaderEvents final : public StrictEvents {
 public:
  HeaderEvents(std::string label, std::uint64_t max_tensors)
      : StrictEvents(std::move(label)), max_tensors_(max_tensors) {}

  std::vector<HeaderEntry>& entries() { return entries_; }

  bool start_object(std::size_t) override {
    if (depth_ == 1 && !has_key_) return refuse("an object");
    if (depth_ >= 2) return refuse("an object");
    ++depth_;
    seen_ = 0;
    return true;
  }
  bool end_object() override {
    --depth_;
    if (depth_ == 1 && !in_metadata_ && seen_ != 7) {
      return fail(Status::format_error("%s: tensor '%.100s' lacks dtype, shape or data_offsets", label_.c_str(),
                                       entries_.back().name.c_str()));
    }
    in_metadata_ = has_key_ = false;
    return true;
  }
  bool key(std::string& key) override {
    if (depth_ == 1) return begin_entry(key);
    if (in_metadata_) return true;
    const std::array<const char*, 3> fields = {"dtype", "shape", "data_offsets"};
    for (unsigned i = 0; i < fields.size(); ++i) {
      if (key != fields[i]) continue;
      if (seen_ & (1U << i)) {
        return fail(Status::format_error("%s: tensor '%.100s': '%s' is there twice", label_.c_str(), place().c_str(),
                                         fields[i]));
      }
      seen_ |= 1U << i;
      field_ = static_cast<int>(i);
      numbers_ = 0;
      return true;
    }
    return fail(Status::format_error("%s: tensor '%.100s': unknown field '%.60s'", label_.c_str(), place().c_str(),
                                     key.c_str()));
  }
  bool string(std::string& text) override {
    if (in_metadata_ && depth_ == 2) return true;
    if (depth_ != 2 || field_ != 0 || in_array_) return refuse("a string");
    for (const TypeInfo& info : kTypes) {
      if (text == info.name) {
        entries_.back().type = info.type;
        return true;
      }
    }
    return fail(Status::unsupported("%s: tensor '%.100s' has element type '%.30s'", label_.c_str(), place().c_str(),
                                    text.c_str()));
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_ || field_ == 0 || in_array_) return refuse("an array");
    in_array_ = true;
    return true;
  }
  bool end_array() override {
    in_array_ = false;
    if (field_ == 2 && numbers_ != 2) return refuse("data_offsets that are not two numbers");
    return true;
  }
  bool number_unsigned(std::uint64_t value) override {
    if (!in_array_) return refuse("a number");
    ++numbers_;
    if (field_ == 1) {
      if (value > INT32_MAX || numbers_ > kMaxRank)
        return refuse("a dimension above 2147483647, or more than 8 of them");
      entries_.back().shape.push_back(static_cast<std::int64_t>(value));
    } else if (numbers_ <= 2) {
      (numbers_ == 1 ? entries_.back().begin : entries_.back().end) = value;
    } else {
      return refuse("data_offsets that are not two numbers");
    }
    return true;
  }

 private:
  bool begin_entry(const std::string& name) {
    has_key_ = true;
    if (name == "__metadata__") {
      if (had_metadata_) return fail(Status::format_error("%s: __metadata__ is there twice", label_.c_str()));
      in_metadata_ = had_metadata_ = true;
      return true;
    }
    if (entries_.size() >= max_tensors_) {
      return fail(Status::limit_exceeded("%s: more than %llu tensors", label_.c_str(), ull{max_tensors_}));
    }
    if (name.empty() || name.size() > kMaxNameBytes) {
      return fail(Status::format_error("%s: a tensor name has %zu bytes (1 to %zu)", label_.c_str(), name.size(),
                                       kMaxNameBytes));
    }
    entries_.emplace_back().name = name;
    field_ = -1;
    return true;
  }
  std::string place() const override { return entries_.empty() ? "the header" : entries_.back().name; }

  std::uint64_t max_tensors_;
  std::vector<HeaderEntry> entries_;
  int depth_ = 0, field_ = -1;
  unsigned seen_ = 0;
  std::size_t numbers_ = 0;
  bool has_key_ = false, in_metadata_ = false, had_metadata_ = false, in_array_ = false;
};

/// {"metadata": {...ignored...}, "weight_map": {name: file}}
class IndexEvents final : public StrictEvents {
 public:
  IndexEvents(std::string label, std::uint64_t max_tensors)
      : StrictEvents(std::move(label)), max_tensors_(max_tensors) {}

  std::map<std::string, std::string>& files() { return files_; }
  bool has_map() const { return has_map_; }

  bool null() override { return ignored("null"); }
  bool boolean(bool) override { return ignored("a boolean"); }
  bool number_unsigned(std::uint64_t) override { return ignored("a number"); }
  bool number_float(double, const std::string&) override { return ignored("a fraction"); }
  bool start_array(std::size_t) override { return ignored("an array"); }
  bool start_object(std::size_t) override {
    if (depth_ >= 16 || (depth_ == 2 && in_map_)) return refuse("an object");
    ++depth_;
    return true;
  }
  bool end_object() override {
    if (--depth_ == 1) in_map_ = false;
    return true;
  }
  bool key(std::string& key) override {
    if (depth_ == 1) {
      in_map_ = key == "weight_map";
      if (in_map_ && has_map_) return fail(Status::format_error("%s: weight_map is there twice", label_.c_str()));
      has_map_ = has_map_ || in_map_;
    }
    if (depth_ == 2 && in_map_) {
      if (files_.size() >= max_tensors_) {
        return fail(Status::limit_exceeded("%s: more than %llu tensors", label_.c_str(), ull{max_tensors_}));
      }
      if (files_.contains(key)) {
        return fail(Status::format_error("%s: tensor '%.100s' is there twice", label_.c_str(), key.c_str()));
      }
    }
    key_ = key;
    return true;
  }
  bool string(std::string& text) override {
    if (depth_ == 2 && in_map_) files_[key_] = text;
    return depth_ > 0 ? true : refuse("a string");
  }

 private:
  bool ignored(const char* what) { return depth_ == 0 || in_map_ ? refuse(what) : true; }
  std::string place() const override { return key_; }

  std::uint64_t max_tensors_;
  std::map<std::string, std::string> files_;
  std::string key_;
  int depth_ = 0;
  bool in_map_ = false, has_map_ = false;
};

Status check_entry_size(const HeaderEntry& entry, const std::string& label) {
  std::uint64_t size = static_cast<std::uint64_t>(safetensors_type_bytes(entry.type));
  for (std::int64_t dim : entry.shape) {
    const auto product = checked_mul(size, static_cast<std::uint64_t>(dim));
    if (!product)
      return Status::format_error("%s: tensor '%.100s': its shape overflows", label.c_str(), entry.name.c_str());
    size = *product;
  }
  if (entry.begin > entry.end || entry.end - entry.begin != size) {
    return Status::format_error("%s: tensor '%.100s': offsets [%llu, %llu), but its shape takes %llu bytes",
                                label.c_str(), entry.name.c_str(), ull{entry.begin}, ull{entry.end}, ull{size});
  }
  return {};
}

/// The entries must cover the data from end to end, each byte once.
Status check_cover(std::vector<HeaderEntry>& entries, std::uint64_t data_bytes, const std::string& label) {
  std::sort(entries.begin(), entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  std::uint64_t end = 0;
  for (const HeaderEntry& entry : entries) {
    if (entry.begin != end) {
      return Status::format_error("%s: tensor '%.100s' begins at byte %llu of the data (expected %llu): %s",
                                  label.c_str(), entry.name.c_str(), ull{entry.begin}, ull{end},
                                  entry.begin < end ? "tensors overlap" : "there is a hole");
    }
    end = entry.end;
  }
  if (end != data_bytes) {
    return Status::format_error("%s: its tensors take %llu bytes, but the file holds %llu: %s", label.c_str(), ull{end},
                                ull{data_bytes}, end > data_bytes ? "truncated" : "trailing bytes");
  }
  return {};
}

/// A plain file name in the folder itself.
bool is_shard_name(const std::string& name) {
  return name.size() <= 255 && name.ends_with(".safetensors") && name.front() != '.' &&
         name.find('/') == std::string::npos && name.find('\\') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

Result<SafetensorsMap> read_shards(const std::string& folder, const std::string& index_path, FileAccess access,
                                   const SafetensorsLimits& limits) {
  const std::string label = "model.safetensors.index.json";
  CAIRN_TRY_ASSIGN(const std::string text, read_text_file(index_path, kMaxIndexBytes));
  CAIRN_TRY(check_token_lengths(text.data(), text.size(), label));
  IndexEvents events(label, limits.max_tensors);
  const bool parsed = Json::sax_parse(text, &events);
  CAIRN_TRY(events.status());
  if (!parsed || !events.has_map()) return Status::format_error("%s: no weight_map", label.c_str());
  std::set<std::string> shards;
  for (const auto& [name, shard] : events.files()) {
    if (shard.empty() || !is_shard_name(shard)) {
      return Status::format_error("%s: tensor '%.100s' lies in '%.100s', which is no .safetensors file of this folder",
                                  label.c_str(), name.c_str(), shard.c_str());
    }
    shards.insert(shard);
  }
  if (shards.size() > 4096) return Status::limit_exceeded("%s: %zu shards (limit 4096)", label.c_str(), shards.size());
  SafetensorsMap all;
  for (const std::string& shard : shards) {
    CAIRN_TRY_ASSIGN(auto source, file_source(folder + "/" + shard, access));
    CAIRN_TRY_ASSIGN(SafetensorsMap tensors, read_safetensors(std::move(source), shard, limits));
    for (auto& [name, entry] : tensors) {
      const auto listed = events.files().find(name);
      if (listed == events.files().end() || listed->second != shard) {
        return Status::format_error("%s: tensor '%.100s' is not listed for this shard", shard.c_str(), name.c_str());
      }
      all.emplace(name, std::move(entry));
    }
  }
  for (const auto& [name, shard] : events.files()) {
    if (!all.contains(name)) {
      return Status::format_error("%s: tensor '%.100s' is listed, but not there", shard.c_str(), name.c_str());
    }
  }
  return all;
}

}  // namespace

const char* safetensors_type_name(SafetensorsType type) { return kTypes[static_cast<std::size_t>(type)].name; }
int safetensors_type_bytes(SafetensorsType type) { return kTypes[static_cast<std::size_t>(type)].bytes; }

Result<SafetensorsMap> read_safetensors(std::shared_ptr<const ByteSource> source, const std::string& label,
                                        const SafetensorsLimits& limits) {
  const std::uint64_t size = source->size_bytes();
  std::array<std::uint8_t, 8> prefix{};
  if (size < prefix.size() + 2)
    return Status::format_error("%s: %llu bytes are no safetensors file", label.c_str(), ull{size});
  CAIRN_TRY(source->read(0, prefix.data(), prefix.size()));
  std::uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | prefix[static_cast<std::size_t>(i)];
  if (header_bytes > kMaxSafetensorsHeaderBytes || header_bytes > size - prefix.size()) {
    return Status::format_error("%s: header of %llu bytes in a file of %llu (limit %llu)", label.c_str(),
                                ull{header_bytes}, ull{size}, ull{kMaxSafetensorsHeaderBytes});
  }
  const auto* memory = source->memory();
  if (!memory) return Status::error(CAIRN_STATUS_INTERNAL, "safetensors are read from memory only");
  const char* header = reinterpret_cast<const char*>(memory) + prefix.size();
  if (header_bytes == 0 || header[0] != '{')
    return Status::format_error("%s: its header does not begin with '{'", label.c_str());
  CAIRN_TRY(check_token_lengths(header, header_bytes, label));
  HeaderEvents events(label, limits.max_tensors);
  const bool parsed = Json::sax_parse(header, header + header_bytes, &events);
  CAIRN_TRY(events.status());
  if (!parsed) return Status::format_error("%s: its header is not valid JSON", label.c_str());
  for (const HeaderEntry& entry : events.entries()) CAIRN_TRY(check_entry_size(entry, label));
  const std::uint64_t data_offset = prefix.size() + header_bytes;
  CAIRN_TRY(check_cover(events.entries(), size - data_offset, label));
  SafetensorsMap tensors;
  for (HeaderEntry& entry : events.entries()) {
    const std::uint64_t entry_bytes = entry.end - entry.begin;
    if (entry_bytes > limits.max_tensor_bytes) {
      return Status::limit_exceeded("%s: tensor '%.100s' has %llu bytes (limit %llu)", label.c_str(),
                                    entry.name.c_str(), ull{entry_bytes}, ull{limits.max_tensor_bytes});
    }
    SafetensorsEntry tensor{entry.type, std::move(entry.shape), memory + data_offset + entry.begin, entry_bytes,
                            source};
    if (!tensors.emplace(entry.name, std::move(tensor)).second) {
      return Status::format_error("%s: tensor '%.100s' is there twice", label.c_str(), entry.name.c_str());
    }
  }
  return tensors;
}

Result<SafetensorsMap> read_safetensors_folder(const std::string& folder, FileAccess access,
                                               const SafetensorsLimits& limits) {
  const std::string index = folder + "/model.safetensors.index.json";
  CAIRN_TRY_ASSIGN(const bool has_index, file_exists(index));
  if (has_index) return read_shards(folder, index, access, limits);
  const std::string single = folder + "/model.safetensors";
  CAIRN_TRY_ASSIGN(auto source, file_source(single, access));
  return read_safetensors(std::move(source), "model.safetensors", limits);
}

}  // namespace cairn
