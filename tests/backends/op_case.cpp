#include "tests/backends/op_case.h"

#include <algorithm>
#include <bit>

namespace cairn::test {

Schedule all_at_once(const Lengths& lengths) {
  Call call;
  for (std::size_t b = 0; b < lengths.size(); ++b) call.push_back({static_cast<std::int32_t>(b), 0, lengths[b]});
  return {call};
}

Schedule one_by_one(const Lengths& lengths) {
  Schedule schedule;
  for (std::size_t b = 0; b < lengths.size(); ++b) schedule.push_back({{static_cast<std::int32_t>(b), 0, lengths[b]}});
  return schedule;
}

Schedule reversed(const Lengths& lengths) {
  Schedule schedule = all_at_once(lengths);
  std::reverse(schedule[0].begin(), schedule[0].end());
  return schedule;
}

Schedule split_at(const Lengths& lengths, std::int32_t multiple) {
  Schedule schedule;
  const std::int32_t longest = *std::max_element(lengths.begin(), lengths.end());
  for (std::int32_t first = 0; first < longest; first += multiple) {
    Call call;
    for (std::size_t b = 0; b < lengths.size(); ++b) {
      call.push_back(
          {static_cast<std::int32_t>(b), std::min(first, lengths[b]), std::clamp(lengths[b] - first, 0, multiple)});
    }
    schedule.push_back(call);
  }
  return schedule;
}

Schedule token_by_token(const Lengths& lengths) {
  Schedule schedule = split_at(lengths, 1);
  for (Call& call : schedule) std::erase_if(call, [](const Piece& piece) { return piece.count == 0; });
  return schedule;
}

Schedule token_by_token_alone(const Lengths& lengths) {
  Schedule schedule;
  for (const Call& call : token_by_token(lengths)) {
    for (const Piece& piece : call) schedule.push_back({piece});
  }
  return schedule;
}

TokenField normal_field(Random& random, const Lengths& lengths, std::int32_t width, double scale) {
  return make_field(lengths, width, [&](std::size_t count) { return random.normals(count, scale); });
}

TokenField uniform_field(Random& random, const Lengths& lengths, std::int32_t width, double low, double high) {
  return make_field(lengths, width, [&](std::size_t count) { return random.uniforms(count, low, high); });
}

TokenField unit_field(Random& random, const Lengths& lengths, std::int32_t heads, std::int32_t dim) {
  return make_field(lengths, heads * dim, [&](std::size_t count) { return random.unit_rows(count / dim, dim); });
}

TokenField decay_field(Random& random, const Lengths& lengths, std::int32_t width, bool harsh) {
  return make_field(lengths, width, [&](std::size_t count) { return random.log_decays(count, harsh); });
}

TokenOutput::TokenOutput(std::string output_name, const Lengths& lengths, std::int32_t output_width)
    : name(std::move(output_name)), field(make_field(lengths, output_width, [](std::size_t count) {
        return std::vector<float>(count, std::nanf(""));
      })) {}

CallIo::CallIo(OpRig& rig, const Call& call) : rig_(rig), call_(call), mark_(rig.mark()) {
  std::vector<std::int32_t> counts;
  for (const Piece& piece : call) counts.push_back(piece.count);
  batch_ = rig.batch(counts);
}

std::vector<float> CallIo::gather(const TokenField& field, std::int64_t stride) const {
  std::vector<float> rows(static_cast<std::size_t>(token_count()) * stride,
                          std::bit_cast<float>(0xFFFFFFFFU));  // NaN between rows
  auto to = rows.begin();
  for (const Piece& piece : call_) {
    const auto from =
        field.of_sequence[piece.sequence].begin() + static_cast<std::ptrdiff_t>(piece.first) * field.width;
    for (std::int32_t t = 0; t < piece.count; ++t, to += stride)
      std::copy_n(from + static_cast<std::ptrdiff_t>(t) * field.width, field.width, to);
  }
  return rows;
}

ConstRows CallIo::in(const TokenField& field) {
  const std::int64_t stride = rig_.row_stride(field.width, 3);
  return {rig_.upload_activations(gather(field, stride)), stride};
}

float* CallIo::packed(const TokenField& field) { return rig_.upload(gather(field, field.width)); }

Rows CallIo::out(TokenOutput& output) {
  const std::int64_t stride = rig_.row_stride(output.field.width, 5);
  void* data = rig_.poisoned_activations(static_cast<std::size_t>(token_count()) * stride);
  pending_.push_back({&output, data, stride, true});
  return {data, stride};
}

float* CallIo::packed_out(TokenOutput& output) {
  float* data = rig_.poisoned(static_cast<std::size_t>(token_count()) * output.field.width);
  pending_.push_back({&output, data, output.field.width, false});
  return data;
}

Rows CallIo::in_place(const TokenField& field, TokenOutput& output) {
  const std::int64_t stride = rig_.row_stride(field.width, 5);
  void* data = rig_.upload_activations(gather(field, stride));
  pending_.push_back({&output, data, stride, true});
  return {data, stride};
}

std::vector<std::int64_t> CallIo::starts() const {
  std::vector<std::int64_t> result;
  for (const Piece& piece : call_) result.push_back(piece.first);
  return result;
}

bool CallIo::collect() {
  bool clean = true;
  for (const Pending& pending : pending_) {
    TokenField& field = pending.output->field;
    const std::size_t count = static_cast<std::size_t>(token_count()) * pending.stride;
    const std::vector<float> rows = pending.is_activation
                                        ? rig_.download_activations(pending.data, count)
                                        : rig_.download(static_cast<const float*>(pending.data), count);
    auto from = rows.begin();
    for (const Piece& piece : call_) {
      for (std::int32_t t = 0; t < piece.count; ++t, from += pending.stride) {
        std::copy_n(
            from, field.width,
            field.of_sequence[piece.sequence].begin() + static_cast<std::ptrdiff_t>(piece.first + t) * field.width);
        for (std::int64_t i = field.width; i < pending.stride; ++i) {
          clean = clean && std::bit_cast<std::uint32_t>(from[i]) == 0xFFFFFFFFU;
        }
      }
    }
  }
  return clean;
}

void add_output(Outcome* outcome, const TokenOutput& output) {
  Outcome::Output joined{output.name, {}};
  for (const auto& values : output.field.of_sequence)
    joined.values.insert(joined.values.end(), values.begin(), values.end());
  outcome->outputs.push_back(std::move(joined));
}

DeviceStates::DeviceStates(OpRig& rig, const std::vector<std::vector<float>>& initial) {
  for (const std::vector<float>& values : initial) {
    of_sequence.push_back(rig.upload(values));
    counts.push_back(values.size());
  }
}

void DeviceStates::add_to(OpRig& rig, const char* name, Outcome* outcome) const {
  Outcome::Output joined{name, {}};
  for (std::size_t b = 0; b < counts.size(); ++b) {
    const std::vector<float> values = rig.download(of_sequence[b], counts[b]);
    joined.values.insert(joined.values.end(), values.begin(), values.end());
  }
  outcome->outputs.push_back(std::move(joined));
}

}  // namespace cairn::test
