// Kind model: a whole network in the runtime: prefill, greedy decode, states, sparse prefill, and the stream block by
// block.
#include <algorithm>

#include "runtime/execution/stream.h"
#include "tests/golden/runtime_rig.h"
#include "tests/golden/vector_kinds.h"

namespace cairn::test {
namespace {

std::vector<std::int32_t> tokens_of(const VectorCase& v, const char* name) {
  const std::vector<std::int64_t> wide = v.integers(name);
  return {wide.begin(), wide.end()};
}

/// Logits of the stream's last call.
std::vector<float> logits_of(const Stream& stream) {
  std::vector<float> all;
  for (std::int64_t i = 0; i < stream.logits_rows(); ++i)
    all.insert(all.end(), stream.logits(i).begin(), stream.logits(i).end());
  return all;
}

Result<std::vector<float>> prefill(Stream& stream, State& state, const std::vector<std::int32_t>& tokens,
                                   const SparsePrefill& sparse) {
  const SequenceInput input{&state, tokens, LogitsWanted::kAll};
  CAIRN_TRY(stream.prefill({&input, 1}, sparse, nullptr));
  return logits_of(stream);
}

struct Greedy {
  std::vector<std::int32_t> tokens;
  std::vector<float> logits;
};

/// `count` steps after the logits of the last token; ties: lower id.
Result<Greedy> decode_greedily(Stream& stream, State& state, std::vector<float> last, std::size_t count) {
  Greedy greedy;
  for (std::size_t i = 0; i < count; ++i) {
    greedy.tokens.push_back(static_cast<std::int32_t>(std::max_element(last.begin(), last.end()) - last.begin()));
    State* const one = &state;
    CAIRN_TRY(stream.decode({&one, 1}, {&greedy.tokens.back(), 1}));
    last = logits_of(stream);
    greedy.logits.insert(greedy.logits.end(), last.begin(), last.end());
  }
  return greedy;
}

std::vector<float> last_rows(const std::vector<float>& logits, std::size_t rows, std::size_t vocab) {
  return {logits.end() - rows * vocab, logits.end()};
}

Status compare_states(RuntimeRig& rig, const std::string& tag, const VectorCase& v, Comparison& result) {
  const auto layers = static_cast<std::int32_t>(rig.plan()->description().layers.size());
  for (std::int32_t i = 0; i < layers; ++i)
    CAIRN_TRY(compare_state(rig, i, tag + "layers." + std::to_string(i) + ".", v, result));
  return {};
}

Status check_dense(const VectorCase& v, RuntimeRig& rig, Stream& stream, Comparison& result) {
  const std::vector<std::int32_t> tokens = tokens_of(v, "tokens");
  const std::size_t vocab = rig.plan()->description().vocab_size;
  CAIRN_TRY_ASSIGN(const std::vector<float> logits, prefill(stream, rig.state(), tokens, {}));
  result.floats("logits_prefill", logits);
  CAIRN_TRY(compare_states(rig, "state_prefill.", v, result));
  CAIRN_TRY_ASSIGN(const Greedy greedy,
                   decode_greedily(stream, rig.state(), last_rows(logits, 1, vocab), v.dim("tokens_decode", 0)));
  result.integers("tokens_decode", greedy.tokens);
  result.floats("logits_decode", greedy.logits);
  CAIRN_TRY(compare_states(rig, "state_decode.", v, result));

  CAIRN_TRY(rig.reset());
  const std::size_t split = v.param("split");
  if (split == 0 || split >= tokens.size()) return {};
  CAIRN_TRY_ASSIGN(std::vector<float> first,
                   prefill(stream, rig.state(), {tokens.begin(), tokens.begin() + split}, {}));
  CAIRN_TRY_ASSIGN(const std::vector<float> second,
                   prefill(stream, rig.state(), {tokens.begin() + split, tokens.end()}, {}));
  first.insert(first.end(), second.begin(), second.end());
  result.floats("logits_prefill", first, Path::kChunked, "split");
  CAIRN_TRY(compare_states(rig, "state_prefill.", v, result));
  return rig.reset();
}

Status check_sparse(const VectorCase& v, RuntimeRig& rig, Stream& stream, Comparison& result) {
  if (!v.has("tokens_sparse")) return {};
  const std::size_t vocab = rig.plan()->description().vocab_size;
  SparsePrefill sparse;
  sparse.enabled = true;
  CAIRN_TRY_ASSIGN(const std::vector<float> logits,
                   prefill(stream, rig.state(), tokens_of(v, "tokens_sparse"), sparse));
  result.floats("logits_sparse_last8", last_rows(logits, 8, vocab));
  CAIRN_TRY_ASSIGN(const Greedy greedy,
                   decode_greedily(stream, rig.state(), last_rows(logits, 1, vocab), v.dim("tokens_sparse_decode", 0)));
  result.integers("tokens_sparse_decode", greedy.tokens);
  result.floats("logits_sparse_decode", greedy.logits);
  return rig.reset();
}

/// Token rows of the embedding, on the host.
std::vector<float> embed(const VectorCase& v, const std::vector<std::int32_t>& tokens) {
  const std::vector<float> table = v.floats("w.embed");
  const std::size_t dim = v.dim("w.embed", 1);
  std::vector<float> h;
  for (const std::int32_t token : tokens)
    h.insert(h.end(), table.begin() + token * dim, table.begin() + (token + 1) * dim);
  return h;
}

/// Runs the blocks one by one; returns h after each, [layers, T, D].
Result<std::vector<float>> read_blocks(const VectorCase& v, RuntimeRig& rig, const std::vector<std::int32_t>& tokens,
                                       const SparsePrefill& sparse) {
  const std::int32_t dim = rig.plan()->description().model_dim;
  const std::size_t count = tokens.size() * dim;
  std::int32_t width = 1;  // of the widest residual on the bus
  for (const LayerConfig& layer : rig.plan()->description().layers) {
    width = std::max({width, layer.delta.value_heads * layer.delta.value_dim, layer.sdm.heads * layer.sdm.value_dim});
  }
  CAIRN_TRY_ASSIGN(const DeviceBuffer h, rig.upload(embed(v, tokens)));
  CAIRN_TRY_ASSIGN(const DeviceBuffer bus0, rig.upload(std::vector<float>(tokens.size() * width)));
  CAIRN_TRY_ASSIGN(const DeviceBuffer bus1, rig.upload(std::vector<float>(tokens.size() * width)));
  std::vector<float> after_blocks;
  Status status;
  CAIRN_TRY(rig.read(static_cast<std::int32_t>(tokens.size()), Phase::kPrefill, sparse, [&](Step& step) {
    step.bus.buffers[0] = {bus0.data(), width};
    step.bus.buffers[1] = {bus1.data(), width};
    for (const std::unique_ptr<Block>& block : rig.plan()->blocks()) {
      block->run(step, {h.data(), dim});
      auto rows = rig.download(h.data(), count);
      if (!rows.ok()) return void(status = rows.status());
      after_blocks.insert(after_blocks.end(), rows.value().begin(), rows.value().end());
    }
  }));
  CAIRN_TRY(status);
  return after_blocks;
}

Status check_blocks(const VectorCase& v, RuntimeRig& rig, Comparison& result) {
  CAIRN_TRY_ASSIGN(const std::vector<float> h, read_blocks(v, rig, tokens_of(v, "tokens"), {}));
  result.floats("h_blocks", h);
  CAIRN_TRY(rig.reset());
  if (!v.has("tokens_sparse")) return {};
  SparsePrefill sparse;
  sparse.enabled = true;
  CAIRN_TRY(read_blocks(v, rig, tokens_of(v, "tokens_sparse"), sparse).status());
  std::size_t next = 0;
  const std::vector<LayerConfig>& layers = rig.plan()->description().layers;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const bool routes_residual = layers[i].routing.kind == Routing::kCler || layers[i].routing.kind == Routing::kClerH;
    if (layers[i].mechanism != Mechanism::kGdn || routes_residual) continue;
    if (next == rig.sparse_choices().size()) return Status::unsupported("layer %zu did not run sparsely", i);
    result.integers("mask.layers." + std::to_string(i), rig.sparse_choices()[next++].mask);
  }
  return {};
}

Status check(const VectorCase& v, const std::string& backend, Comparison& result) {
  CAIRN_TRY_ASSIGN(const std::shared_ptr<const ModelDescription> description, model_description(v));
  const std::int64_t room =
      std::max<std::int64_t>(v.dim("tokens", 0), v.has("tokens_sparse") ? v.dim("tokens_sparse", 0) : 0) + 64;
  CAIRN_TRY_ASSIGN(const std::unique_ptr<RuntimeRig> rig, RuntimeRig::create(description, backend, room));
  CAIRN_TRY_ASSIGN(const std::unique_ptr<Stream> stream, Stream::create(rig->plan(), {}));
  CAIRN_TRY(check_dense(v, *rig, *stream, result));
  CAIRN_TRY(check_sparse(v, *rig, *stream, result));
  return check_blocks(v, *rig, result);
}

}  // namespace

void check_model(const VectorCase& v, OpRig& rig, Comparison& result) {
  const Status status = check(v, rig.backend().name, result);
  if (!status.ok()) result.fail(status.message());
}

}  // namespace cairn::test
