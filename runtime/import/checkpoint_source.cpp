#include "runtime/import/checkpoint_source.h"

#include <charconv>
#include <cstring>

#include "runtime/support/allocator.h"

namespace cairn {
namespace {

std::int64_t product(const std::vector<std::int64_t>& shape, std::size_t first) {
  std::int64_t count = 1;
  for (std::size_t i = first; i < shape.size(); ++i) count *= shape[i];
  return count;
}

/// Cairn's element type for one that needs no conversion.
bool element_type_of(SafetensorsType type, DType& dtype) {
  switch (type) {
    case SafetensorsType::kF32: dtype = DType::kF32; return true;
    case SafetensorsType::kBF16: dtype = DType::kBF16; return true;
    case SafetensorsType::kF16: dtype = DType::kF16; return true;
    default: return false;
  }
}

}  // namespace

Status CheckpointSource::take_all(const std::function<Status(const WantedTensor&)>& take) {
  for (const TensorSpec& spec : expected_tensors(context_.description)) {
    WantedTensor wanted{spec, -1, spec.name, root_};
    if (spec.name.starts_with("layers.")) {
      const std::size_t dot = spec.name.find('.', 7);
      std::from_chars(spec.name.data() + 7, spec.name.data() + dot, wanted.layer);
      wanted.part = spec.name.substr(dot + 1);
      wanted.prefix = root_ + spec.name.substr(0, dot + 1);
    }
    CAIRN_TRY(take(wanted));
  }
  return {};
}

std::string CheckpointSource::choose(const WantedTensor& wanted, const Names& names) const {
  for (const std::string& name : names) {
    if (has(wanted.prefix + name)) return wanted.prefix + name;
  }
  return wanted.prefix + names.front();
}

Status CheckpointSource::take(const WantedTensor& wanted, const Names& names) {
  return context_.tensors.take(choose(wanted, names), wanted.spec.name, wanted.spec.shape);
}

Status CheckpointSource::take_flat(const WantedTensor& wanted, const Names& names, std::int64_t heads) {
  const std::string source = choose(wanted, names);
  const std::vector<std::int64_t> matrix = {heads, wanted.spec.shape[0] / heads};
  if (context_.tensors.shape(source) != matrix) return take(wanted, names);
  return context_.tensors.take_part(source, matrix, 0, wanted.spec.name, wanted.spec.shape);
}

Status CheckpointSource::take_part(const WantedTensor& wanted, const std::string& name,
                                   const std::vector<std::int64_t>& source_shape) {
  return context_.tensors.take_part(wanted.prefix + name, source_shape, 0, wanted.spec.name, wanted.spec.shape);
}

Status CheckpointSource::take_halved(const WantedTensor& wanted, const std::string& name) {
  const std::string source = wanted.prefix + name;
  CAIRN_TRY_ASSIGN(std::vector<float> values, context_.tensors.as_f32(source));
  if (context_.tensors.shape(source) != wanted.spec.shape) {
    return Status::format_error("tensor '%s' has shape %s (expected %s)", source.c_str(),
                                shape_text(context_.tensors.shape(source)).c_str(),
                                shape_text(wanted.spec.shape).c_str());
  }
  for (float& value : values) value *= 0.5F;
  context_.tensors.mark_used(source);
  return context_.tensors.add(wanted.spec.name, DType::kF32, wanted.spec.shape, values.data(),
                              values.size() * sizeof(float));
}

Status CheckpointSource::take_rows(const WantedTensor& wanted, const Names& names, std::int64_t source_rows,
                                   std::int64_t first) {
  return context_.tensors.take_rows(choose(wanted, names), source_rows, first, wanted.spec.name, wanted.spec.shape);
}

Status CheckpointSource::gather_rows(const WantedTensor& wanted, const std::string& name, std::int64_t source_rows,
                                     const std::function<std::int64_t(std::int64_t)>& row) {
  const std::string source = wanted.prefix + name;
  std::vector<std::int64_t> whole = wanted.spec.shape;
  whole[0] = source_rows;
  if (!has(source)) return Status::format_error("tensor '%s' is missing", source.c_str());
  const SafetensorsEntry& entry = context_.tensors.sources().at(source);
  if (entry.shape != whole) {
    return Status::format_error("tensor '%s' has shape %s (expected %s)", source.c_str(),
                                shape_text(entry.shape).c_str(), shape_text(whole).c_str());
  }
  DType dtype = DType::kF32;
  const std::byte* from = entry.data;
  std::vector<float> converted;
  if (!element_type_of(entry.type, dtype)) {
    CAIRN_TRY_ASSIGN(converted, context_.tensors.as_f32(source));
    from = reinterpret_cast<const std::byte*>(converted.data());
  }
  const std::int64_t rows = wanted.spec.shape[0];
  const auto row_bytes = static_cast<std::uint64_t>(product(whole, 1)) * (dtype == DType::kF32 ? 4U : 2U);
  CAIRN_TRY_ASSIGN(HostBuffer gathered,
                   HostBuffer::allocate(static_cast<std::uint64_t>(rows) * row_bytes, source.c_str()));
  auto* to = reinterpret_cast<std::byte*>(gathered.data());
  for (std::int64_t i = 0; i < rows; ++i) {
    std::memcpy(to + static_cast<std::uint64_t>(i) * row_bytes, from + static_cast<std::uint64_t>(row(i)) * row_bytes,
                row_bytes);
  }
  context_.tensors.mark_used(source);
  return context_.tensors.add(wanted.spec.name, dtype, wanted.spec.shape, to,
                              static_cast<std::uint64_t>(rows) * row_bytes);
}

/// Some versions of transformers save a fused convolution as three parts under the names of q, k and v, wherever the
/// borders of q, k and v are: two of a third, rounded up, and the rest. Put together again they are the fused one.
Result<bool> CheckpointSource::take_thirds(const WantedTensor& wanted, const std::string& own, std::int64_t first,
                                           std::int64_t total) {
  const std::vector<std::int64_t>& wanted_shape = wanted.spec.shape;
  const std::size_t letter = own.rfind("_conv1d") - 1;
  if (letter >= own.size()) return false;
  const std::int64_t third = (total + 2) / 3;
  std::vector<float> joined;
  for (const char which : {'q', 'k', 'v'}) {
    std::string name = own;
    name[letter] = which;
    const std::int64_t rows = which == 'v' ? total - 2 * third : third;
    if (context_.tensors.shape(name) != std::vector<std::int64_t>{rows, 1, wanted_shape[1]}) return false;
    CAIRN_TRY_ASSIGN(const std::vector<float> part, context_.tensors.as_f32(name));
    joined.insert(joined.end(), part.begin(), part.end());
  }
  context_.tensors.mark_used(own);
  const auto skipped = static_cast<std::size_t>(first * wanted_shape[1]);
  const auto count = static_cast<std::uint64_t>(wanted_shape[0] * wanted_shape[1]);
  CAIRN_TRY(context_.tensors.add(wanted.spec.name, DType::kF32, wanted_shape, joined.data() + skipped,
                                 count * sizeof(float)));
  return true;
}

Status CheckpointSource::take_convolution(const WantedTensor& wanted, const Names& own_names,
                                          const std::string& fused_name, const DeltaRuleConfig& config) {
  const std::string own = own_names.empty() ? "" : choose(wanted, own_names), fused = wanted.prefix + fused_name;
  const bool is_fused = own_names.empty() || (!has(own) && has(fused));
  const std::int64_t key_width = std::int64_t{config.key_heads} * config.key_dim;
  const std::int64_t value_width = std::int64_t{config.value_heads} * config.value_dim;
  const char which = wanted.part[std::strlen("mixer.conv_")];
  const std::int64_t first = which == 'q' ? 0 : which == 'k' ? key_width : 2 * key_width;
  const std::int64_t total = 2 * key_width + value_width;
  if (is_fused) return take_rows(wanted, {fused_name}, total, first);
  if (key_width != value_width) {
    CAIRN_TRY_ASSIGN(const bool is_taken, take_thirds(wanted, own, first, total));
    if (is_taken) return {};
  }
  return context_.tensors.take(own, wanted.spec.name, wanted.spec.shape);
}

Status CheckpointSource::take_expert_rows(const WantedTensor& wanted, const std::string& name,
                                          const std::vector<std::int64_t>& source_shape, std::int64_t expert,
                                          std::int64_t first_row) {
  const std::uint64_t skipped = static_cast<std::uint64_t>((expert * source_shape[1] + first_row) * source_shape[2]);
  return context_.tensors.take_part(wanted.prefix + name, source_shape, skipped, wanted.spec.name, wanted.spec.shape);
}

ExpertPart split_expert(const std::string& mlp_part) {
  ExpertPart result{-1, mlp_part};
  constexpr std::string_view kExperts = "experts.";
  if (!mlp_part.starts_with(kExperts)) return result;
  const std::size_t dot = mlp_part.find('.', kExperts.size());
  std::from_chars(mlp_part.data() + kExperts.size(), mlp_part.data() + dot, result.expert);
  result.part = mlp_part.substr(dot + 1);
  return result;
}

Status take_mlp(CheckpointSource& source, const WantedTensor& wanted, const std::string& stem, const MlpConfig& mlp) {
  const auto projection = [](const std::string& part) { return part.substr(0, part.find('.')) + "_proj.weight"; };
  const std::string part = wanted.part.substr(std::strlen("mlp."));
  if (mlp.kind == MlpKind::kSwiglu) return source.take(wanted, {stem + projection(part)});
  if (part == "router.weight") return source.take(wanted, {stem + "gate.weight"});
  if (part == "router_bias") return source.take(wanted, {stem + "gate.e_score_correction_bias"});
  if (part == "shared_gate.weight") return source.take(wanted, {stem + "shared_expert_gate.weight"});
  if (part.starts_with("shared.")) {
    const std::string name = projection(part.substr(7));
    return source.take(wanted, {stem + "shared_expert." + name, stem + "shared_experts." + name});
  }
  const ExpertPart expert = split_expert(part);
  const std::string fused = stem + (expert.part == "down.weight" ? "experts.down_proj" : "experts.gate_up_proj");
  if (source.has(wanted.prefix + fused)) {
    const std::int64_t rows = wanted.spec.shape[0], columns = wanted.spec.shape[1];
    if (expert.part == "down.weight")
      return source.take_expert_rows(wanted, fused, {mlp.expert_count, rows, columns}, expert.expert, 0);
    const std::int64_t first = expert.part == "gate.weight" ? 0 : rows;
    return source.take_expert_rows(wanted, fused, {mlp.expert_count, 2 * rows, columns}, expert.expert, first);
  }
  const std::string stacked = stem + "switch_mlp." + projection(expert.part);  // as MLX has them
  if (source.has(wanted.prefix + stacked)) {
    return source.take_expert_rows(wanted, stacked, {mlp.expert_count, wanted.spec.shape[0], wanted.spec.shape[1]},
                                   expert.expert, 0);
  }
  const std::string one = stem + "experts." + std::to_string(expert.expert) + ".";
  const char* short_name = expert.part == "gate.weight" ? "w1.weight"
                           : expert.part == "up.weight" ? "w3.weight"
                                                        : "w2.weight";
  return source.take(wanted, {one + projection(expert.part), one + short_name});
}

bool is_head_tied(ImportContext& context, bool says_tied, const std::string& head) {
  if (!context.tensors.has(head)) return true;
  if (says_tied) context.tensors.mark_used(head);
  return says_tied;
}

void ignore_empty_shared_experts(ImportContext& context) {
  for (const LayerConfig& layer : context.description.layers) {
    if (layer.mlp.shared_hidden_dim > 0) return;
  }
  for (const auto& [name, entry] : context.tensors.sources()) {
    const bool is_shared = name.find(".shared_expert") != std::string::npos;
    if (is_shared && (entry.size_bytes == 0 || name.ends_with(".shared_expert_gate.weight")))
      context.tensors.mark_used(name);
  }
}

}  // namespace cairn
