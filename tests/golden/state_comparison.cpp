// A layer's state in the runtime against a case's state tensors.
#include "tests/golden/comparison.h"
#include "tests/golden/runtime_rig.h"

namespace cairn::test {
namespace {

std::int32_t find_slot(const State& state, const std::string& name) {
  const std::vector<StateSlot>& slots = state.layout().slots();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].name == name) return static_cast<std::int32_t>(i);
  }
  return -1;
}

Result<std::vector<float>> read_slot(RuntimeRig& rig, std::int32_t slot, std::size_t count) {
  return rig.download(rig.state().dense(slot), count);
}

/// The joint convolution tail [n - 1, q | k | v channels] in its three parts.
Status compare_convolution(RuntimeRig& rig, std::int32_t slot, const std::string& prefix, const VectorCase& v,
                           Comparison& result) {
  const std::size_t rows = v.dim(prefix + "conv_q", 0);
  std::size_t width = 0, first = 0;
  for (const char* part : {"conv_q", "conv_k", "conv_v"}) width += v.dim(prefix + part, 1);
  CAIRN_TRY_ASSIGN(const std::vector<float> tail, read_slot(rig, slot, rows * width));
  for (const char* part : {"conv_q", "conv_k", "conv_v"}) {
    const std::size_t channels = v.dim(prefix + part, 1);
    std::vector<float> columns;
    for (std::size_t r = 0; r < rows; ++r)
      columns.insert(columns.end(), tail.begin() + r * width + first, tail.begin() + r * width + first + channels);
    result.floats(prefix + part, columns);
    first += channels;
  }
  return {};
}

/// Keys or values: the case holds every token [T, H, D], the state the last `capacity` of them, position p in row p %
/// capacity.
Status compare_cache(RuntimeRig& rig, std::int32_t slot, const std::string& tensor, const VectorCase& v,
                     Comparison& result) {
  const std::int64_t tokens = v.dim(tensor, 0), width = v.tensor(tensor).count() / std::max<std::int64_t>(tokens, 1),
                     capacity = rig.state().rows(slot);
  if (tokens != rig.state().position()) result.fail(tensor + ": the state holds another number of tokens");
  CAIRN_TRY_ASSIGN(const std::vector<float> rows, read_slot(rig, slot, capacity * width));
  const std::vector<float> all = v.floats(tensor);
  std::vector<float> got, want;
  for (std::int64_t p = std::max<std::int64_t>(0, tokens - capacity); p < tokens; ++p) {
    got.insert(got.end(), rows.begin() + p % capacity * width, rows.begin() + (p % capacity + 1) * width);
    want.insert(want.end(), all.begin() + p * width, all.begin() + (p + 1) * width);
  }
  result.floats_against(tensor, got, want, Path::kChunked, "");
  return {};
}

Status compare_table(RuntimeRig& rig, std::int32_t slot, const std::string& prefix, Comparison& result) {
  const StateSlot& description = rig.state().layout().slots()[slot];
  const std::int64_t slots = description.shape[1], width = description.shape[2];
  const SlotTable& table = *rig.state().slot_table(slot);
  std::vector<std::int32_t> row_of_slot;
  CAIRN_TRY(table.read_index(rig.queue(), row_of_slot));
  std::vector<std::int64_t> pairs;
  std::vector<float> rows;
  for (std::size_t i = 0; i < row_of_slot.size(); ++i) {
    if (row_of_slot[i] < 0) continue;
    pairs.push_back(static_cast<std::int64_t>(i) / slots);
    pairs.push_back(static_cast<std::int64_t>(i) % slots);
    CAIRN_TRY_ASSIGN(const std::vector<float> row, rig.download(table.row_address(row_of_slot[i]), width));
    rows.insert(rows.end(), row.begin(), row.end());
  }
  result.integers(prefix + "slots", pairs);
  result.floats(prefix + "rows", rows);
  return {};
}

}  // namespace

Status compare_state(RuntimeRig& rig, std::int32_t layer, const std::string& prefix, const VectorCase& v,
                     Comparison& result) {
  const auto slot = [&](const char* part) {
    return find_slot(rig.state(), "layers." + std::to_string(layer) + "." + part);
  };
  for (const auto& [part, name] : {std::pair{"state", "S"}, {"shared_state", "shared"}}) {
    if (slot(part) < 0 || !v.has(prefix + name)) continue;
    CAIRN_TRY_ASSIGN(const std::vector<float> values, read_slot(rig, slot(part), v.tensor(prefix + name).count()));
    result.floats(prefix + name, values);
  }
  if (slot("conv") >= 0 && v.has(prefix + "conv_q"))
    CAIRN_TRY(compare_convolution(rig, slot("conv"), prefix, v, result));
  if (slot("keys") >= 0 && v.has(prefix + "k")) CAIRN_TRY(compare_cache(rig, slot("keys"), prefix + "k", v, result));
  if (slot("values") >= 0 && v.has(prefix + "v"))
    CAIRN_TRY(compare_cache(rig, slot("values"), prefix + "v", v, result));
  if (slot("table") >= 0 && v.has(prefix + "slots")) CAIRN_TRY(compare_table(rig, slot("table"), prefix, result));
  return {};
}

}  // namespace cairn::test
