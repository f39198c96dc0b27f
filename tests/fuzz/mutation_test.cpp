// The fuzz targets over seeded mutations of good files, in every run of the tests. Checksums are mended: what is behind them
// is what is tested.
#include <doctest/doctest.h>

#include <string>

#include "tests/fuzz/fuzz_targets.h"
#include "tests/fuzz/sealed_file.h"

namespace cairn::test {
namespace {

using Target = void (*)(const std::uint8_t*, std::size_t);

void run_mutations(Target target, const Bytes& seed, std::size_t begin, std::size_t end, int count, bool sealed) {
  for (int i = 0; i < count; ++i) {
    Bytes bytes = seed;
    mutate(bytes.data() + begin, end - begin, static_cast<std::uint64_t>(i) + 1);
    if (sealed) reseal(bytes);
    target(bytes.data(), bytes.size());
  }
}

Bytes from_text(const std::string& text) { return Bytes(text.begin(), text.end()); }

}  // namespace

TEST_CASE("mutated model headers with right checksums are refused or sound") {
  for (const Bytes& seed : {good_model_file(), good_quantized_file()}) {
    run_mutations(fuzz_model_open, seed, 64, 64 + load_number(seed, 24, 4), 6000, true);
    run_mutations(fuzz_model_open, seed, 0, 64, 500, true);
    run_mutations(fuzz_model_open, seed, 0, seed.size(), 500, false);
  }
}

TEST_CASE("mutated snapshot headers with right checksums are refused or sound") {
  const Bytes seed = good_snapshot_file();
  run_mutations(fuzz_snapshot_inspect, seed, 64, 64 + load_number(seed, 24, 4), 10000, true);
  run_mutations(fuzz_snapshot_inspect, seed, 0, 64, 2000, true);
  run_mutations(fuzz_snapshot_inspect, seed, 0, seed.size(), 2000, false);
}

TEST_CASE("mutated safetensors are refused or cover their data") {
  const std::string header = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                             R"("b.weight":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},"c":{"dtype":"U8","shape":[],"data_offsets":[32,33]}})";
  const Bytes seed = safetensors_file(header, 33);
  run_mutations(fuzz_safetensors, seed, 0, seed.size() - 33, 30000, false);
}

TEST_CASE("mutated configs are refused by name") {
  const Bytes seed = from_text(R"json({"format": "cairn-native/1", "name": "m", "tokenizer": {"kind": "bytes", "bos": 256, "eos": 257, "vocab": 264},
    "d_model": 8, "n_layers": 3, "mlp_hidden": 6, "norm_eps": 1e-6, "tie_embeddings": true, "layers": ["gdn", "sdm", "sse"],
    "gdn": {"qk_heads": 2, "v_heads": 4, "key_dim": 3, "value_dim": 5, "conv_kernel": 4, "routing": {"kind": "clvr", "rank": 2}},
    "sdm": {"heads": 2, "n": 4, "value_dim": 5, "W": 2, "R": 2}, "sse": {"heads": 2, "key_dim": 3, "value_dim": 5, "partitions": 4, "top_k": 1}})json");
  run_mutations(fuzz_native_config, seed, 0, seed.size(), 20000, false);
}

TEST_CASE("streamed text is valid UTF-8 however it is cut") {
  const Bytes seed = from_text("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x92\xa9 \xed\xa0\x80\xf4\x90 end \xef\xbf\xbd\xe0\xa0\x80");
  run_mutations(fuzz_text, seed, 0, seed.size(), 30000, false);
}

}  // namespace cairn::test
