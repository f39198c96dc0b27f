// rope, softmax_attention, latent_attention: positions that go on, grouped queries, windows and their rings.
#include <memory>

#include "tests/backends/linear_cases.h"
#include "tests/backends/op_cases.h"

namespace cairn::test {
namespace {

OpCase rope_case(const char* name, std::int32_t heads, std::int32_t dim, std::int32_t rotary_dim, float theta,
                 std::int64_t first_position) {
  const Lengths lengths = {1, 63, 0, 65};
  Random random(60);
  auto x = std::make_shared<TokenField>(normal_field(random, lengths, heads * dim));
  OpCase c{name, lengths, [=](OpRig& rig, const Schedule& schedule, Phase) {
             Outcome outcome;
             TokenOutput out("out", lengths, heads * dim);
             for (const Call& call : schedule) {
               CallIo io(rig, call);
               std::vector<std::int64_t> starts = io.starts();
               for (std::int64_t& start : starts) start += first_position;
               const RopeArgs args{rig.dtype(),        io.batch(),          heads, dim, rotary_dim, theta,
                                   rig.upload(starts), io.in_place(*x, out)};
               if (!run_call(rig, io, rig.ops().rope, args, &outcome)) return outcome;
             }
             add_output(&outcome, out);
             return outcome;
           }};
  c.split_multiple = 1;
  return c;
}

struct AttentionSpec {
  const char* name;
  std::int32_t HQ, HKV, K, V, window;
  std::int64_t stored;  ///< tokens in the cache before
  Lengths lengths;
  bool in_eights = false;  ///< rows begin at multiples of 8 elements, as kernels with wide loads want them
  bool has_decode = true;
};

/// Numbers per token that make a row of `width` begin at multiples of 8 elements; CallIo puts `gap` of them between
/// rows.
std::int32_t padded(std::int32_t width, bool in_eights, std::int32_t gap) {
  return in_eights ? (width + gap + 7) / 8 * 8 - gap : width;
}
constexpr std::int32_t kInputGap = 3, kOutputGap = 5;

/// Leaves the first `width` columns of every row; false where something was written beyond them.
bool drop_padding(TokenOutput& output, std::int32_t width) {
  bool clean = true;
  for (std::vector<float>& values : output.field.of_sequence) {
    std::vector<float> kept;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool is_kept = i % static_cast<std::size_t>(output.field.width) < static_cast<std::size_t>(width);
      if (is_kept) kept.push_back(values[i]);
      clean = clean && (is_kept || std::isnan(values[i]));
    }
    values = std::move(kept);
  }
  output.field.width = width;
  return clean;
}

/// Device caches of every sequence; positions [0, stored) filled (the last `capacity` of them), the rest poison.
struct Caches {
  Caches(OpRig& rig, const std::vector<std::vector<float>>& keys, const std::vector<std::vector<float>>& values,
         std::int32_t capacity)
      : key_memory(rig, keys), value_memory(rig, values) {
    for (std::size_t b = 0; b < keys.size(); ++b)
      of_sequence.push_back({key_memory.of_sequence[b], value_memory.of_sequence[b], capacity});
  }
  DeviceStates key_memory, value_memory;
  std::vector<KvCache> of_sequence;
};

std::vector<float> cache_rows(Random& random, std::int32_t capacity, std::int32_t width, std::int64_t stored) {
  std::vector<float> rows(static_cast<std::size_t>(capacity) * width);
  const std::vector<float> filled = random.normals(rows.size());
  std::memset(static_cast<void*>(rows.data()), 0xFF, rows.size() * sizeof(float));
  for (std::int64_t p = stored > capacity ? stored - capacity : 0; p < stored; ++p) {
    const std::size_t at = static_cast<std::size_t>(p % capacity) * width;
    std::copy_n(filled.begin() + static_cast<std::ptrdiff_t>(at), width,
                rows.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return rows;
}

/// Rows that no token has reached are poison in both; they compare as 0.
void without_poison(Outcome::Output* output) {
  for (float& value : output->values) value = std::isnan(value) ? 0 : value;
}

struct AttentionInputs {
  TokenField q, k, v;
  std::vector<std::vector<float>> keys, values;
  std::int32_t capacity = 0;
};

OpCase attention_case(const AttentionSpec& s) {
  Random random(61);
  auto in = std::make_shared<AttentionInputs>();
  in->q = normal_field(random, s.lengths, padded(s.HQ * s.K, s.in_eights, kInputGap));
  in->k = normal_field(random, s.lengths, padded(s.HKV * s.K, s.in_eights, kInputGap));
  in->v = normal_field(random, s.lengths, padded(s.HKV * s.V, s.in_eights, kInputGap));
  in->capacity = s.window ? s.window : static_cast<std::int32_t>(s.stored + 200);
  for (std::size_t b = 0; b < s.lengths.size(); ++b) {
    in->keys.push_back(cache_rows(random, in->capacity, s.HKV * s.K, s.stored));
    in->values.push_back(cache_rows(random, in->capacity, s.HKV * s.V, s.stored));
  }
  OpCase c{s.name, s.lengths, [=](OpRig& rig, const Schedule& schedule, Phase phase) {
             Outcome outcome;
             TokenOutput out("out", s.lengths, padded(s.HQ * s.V, s.in_eights, kOutputGap));
             const Caches caches(rig, in->keys, in->values, in->capacity);
             for (const Call& call : schedule) {
               CallIo io(rig, call);
               std::vector<std::int64_t> starts = io.starts();
               for (std::int64_t& start : starts) start += s.stored;
               const SoftmaxAttentionArgs args{rig.dtype(),
                                               phase,
                                               io.batch(),
                                               s.HQ,
                                               s.HKV,
                                               s.K,
                                               s.V,
                                               s.window,
                                               1 / std::sqrt(static_cast<float>(s.K)),
                                               rig.upload(starts),
                                               starts.data(),
                                               rig.upload(io.pick(caches.of_sequence)),
                                               io.in(in->q),
                                               io.in(in->k),
                                               io.in(in->v),
                                               io.out(out)};
               if (!run_call(rig, io, rig.ops().softmax_attention, args, &outcome)) return outcome;
             }
             if (!drop_padding(out, s.HQ * s.V)) outcome.trouble = "memory between the rows of an output was written";
             add_output(&outcome, out);
             caches.key_memory.add_to(rig, "keys", &outcome);
             without_poison(&outcome.outputs.back());
             caches.value_memory.add_to(rig, "values", &outcome);
             without_poison(&outcome.outputs.back());
             return outcome;
           }};
  c.has_decode = s.has_decode;
  return c;
}

struct LatentSpec {
  const char* name;
  std::int32_t H, nope, shared, V, rank;
  std::int64_t stored;
  DType dtype;
};

OpCase latent_case(const LatentSpec& s) {
  const Lengths lengths = {1, 63, 0, 65};
  Random random(62);
  struct Inputs {
    TokenField q, latent, shared_key;
    HostWeight kv_b;
    std::vector<std::vector<float>> cache;
    std::int32_t capacity;
  };
  auto in = std::make_shared<Inputs>();
  in->q = normal_field(random, lengths, s.H * (s.nope + s.shared));
  in->latent = normal_field(random, lengths, s.rank);
  in->shared_key = normal_field(random, lengths, s.shared);
  in->kv_b = random_weight(random, s.H * (s.nope + s.V), s.rank, s.dtype);
  in->capacity = static_cast<std::int32_t>(s.stored + 100);
  for (std::size_t b = 0; b < lengths.size(); ++b)
    in->cache.push_back(cache_rows(random, in->capacity, s.rank + s.shared, s.stored));
  OpCase c{s.name, lengths, [=](OpRig& rig, const Schedule& schedule, Phase phase) {
             Outcome outcome;
             TokenOutput out("out", lengths, s.H * s.V);
             const DeviceStates keys(rig, in->cache);
             std::vector<KvCache> caches;
             for (float* memory : keys.of_sequence) caches.push_back({memory, nullptr, in->capacity});
             LinearWeight kv_b = bind_weight(rig, in->kv_b);
             rig.pack(&kv_b);
             for (const Call& call : schedule) {
               CallIo io(rig, call);
               std::vector<std::int64_t> starts = io.starts();
               for (std::int64_t& start : starts) start += s.stored;
               const LatentAttentionArgs args{rig.dtype(),
                                              phase,
                                              io.batch(),
                                              s.H,
                                              s.nope,
                                              s.shared,
                                              s.V,
                                              s.rank,
                                              1 / std::sqrt(static_cast<float>(s.nope + s.shared)),
                                              &kv_b,
                                              rig.upload(starts),
                                              starts.data(),
                                              rig.upload(io.pick(caches)),
                                              io.in(in->q),
                                              io.in(in->latent),
                                              io.in(in->shared_key),
                                              io.out(out)};
               if (!run_call(rig, io, rig.ops().latent_attention, args, &outcome)) break;
             }
             if (outcome.trouble.empty()) {
               add_output(&outcome, out);
               keys.add_to(rig, "keys", &outcome);
               without_poison(&outcome.outputs.back());
             }
             rig.clear();  // kv_b is unpacked while it lives
             return outcome;
           }};
  return c;
}

}  // namespace

std::vector<OpCase> rope_cases() {
  return {rope_case("whole head", 3, 16, 16, 1e4F, 0), rope_case("part of a head", 2, 32, 8, 1e6F, 100),
          rope_case("none", 2, 8, 0, 1e4F, 0), rope_case("far positions", 1, 64, 64, 1e7F, 3000)};
}

std::vector<OpCase> softmax_attention_cases() {
  return {attention_case({"full, grouped, ragged", 4, 2, 16, 16, 0, 0, {1, 63, 0, 65, 130}}),
          attention_case({"full, after 70 tokens", 3, 1, 24, 8, 0, 70, {65, 2, 0}}),
          attention_case({"window 16, ring wraps", 2, 2, 16, 16, 16, 0, {100, 3, 0, 16}}),
          attention_case({"window 128, after 300 tokens", 4, 1, 16, 16, 128, 300, {150, 1}}),
          attention_case({"window 5, odd, after 3 tokens", 3, 3, 7, 5, 5, 3, {12, 0, 1}}),
          attention_case({"head of 256", 2, 1, 256, 256, 0, 10, {40}}),
          attention_case({"heads of 64, three to a key head", 3, 1, 64, 64, 0, 0, {0, 1, 63, 64, 65}, true}),
          attention_case({"heads of 128, after 70 tokens", 2, 1, 128, 128, 0, 70, {3, 130, 0, 1}, true}),
          attention_case({"heads of 256, after 20 tokens", 1, 1, 256, 256, 0, 20, {70}, true}),
          attention_case({"keys of 40, values of 24, eight to a key head", 8, 1, 40, 24, 600, 3, {20, 5}, true}),
          attention_case({"keys of 8, values of 72, ten to a key head", 10, 1, 8, 72, 0, 130, {4, 0, 2}, true}),
          attention_case({"500 tokens, window 100, ring full", 2, 1, 64, 64, 100, 130, {500, 3}, true, false}),
          attention_case({"window 40, shorter than a tile, ring wraps", 2, 2, 16, 16, 40, 0, {150, 1, 0}, true}),
          attention_case({"window 300, after 1000 tokens", 2, 1, 16, 8, 300, 1000, {3, 2}, true}),
          attention_case({"after 16500 tokens", 1, 1, 8, 8, 0, 16500, {2}, true})};
}

std::vector<OpCase> latent_attention_cases() {
  return {latent_case({"f32", 3, 16, 8, 12, 20, 0, DType::kF32}),
          latent_case({"bf16, after 50 tokens", 2, 24, 8, 16, 32, 50, DType::kBF16}),
          latent_case({"odd", 1, 5, 3, 7, 9, 4, DType::kF32})};
}

}  // namespace cairn::test
