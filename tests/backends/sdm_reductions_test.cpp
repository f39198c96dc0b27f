// SDM over all slots is a GDN; the example of spec 5; forked tables. On every backend.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/backends/reduction_problem.h"
#include "tests/support/sdm_table_memory.h"

namespace cairn::test {
namespace {

/// One head, every address given by scores; rows come back dense [N, V].
struct SdmProblem {
  std::int32_t T, n, V, W, R;
  Values write_scores, read_scores, v, log_decay, beta, initial;
  bool slot_residual = false;
};

SdmArgs bind_sdm(OpRig& rig, const SdmProblem& p, const SdmTableMemory& table) {
  SdmArgs a{};
  a.dtype = DType::kF32;
  a.batch = rig.batch({p.T});
  a.slot_residual = p.slot_residual;
  a.head_count = 1, a.side = p.n, a.value_dim = p.V, a.write_count = p.W, a.read_count = p.R;
  a.write_scale = a.read_scale = 1;
  a.write_scores = {rig.upload(p.write_scores), 2 * p.n};
  a.read_scores = {rig.upload(p.read_scores), 2 * p.n};
  a.v = {rig.upload(p.v), p.V};
  a.log_decay = rig.upload(p.log_decay);
  a.beta = rig.upload(p.beta);
  a.initial = rig.upload(p.initial);
  a.initial_dtype = DType::kF32;
  a.rows_per_slab = 4;
  a.tables = rig.upload(std::vector<SdmTable>{table.table()});
  return a;
}

Values dense_rows(OpRig& rig, const SdmTableMemory& table, const SdmProblem& p) {
  Values all = p.initial;
  const SdmTableMemory::Written written = table.written(rig);
  for (std::size_t i = 0; i < written.pairs.size() / 2; ++i) {
    std::copy_n(written.rows.begin() + i * p.V, p.V, all.begin() + written.pairs[2 * i + 1] * p.V);
  }
  return all;
}

Result run_sdm(const Backend& backend, const SdmProblem& p) {
  OpRig rig(backend);
  const SdmTableMemory table(rig, 1, static_cast<std::int64_t>(p.n) * p.n, p.V, static_cast<std::int64_t>(p.n) * p.n,
                             4);
  SdmArgs a = bind_sdm(rig, p, table);
  const std::size_t values = static_cast<std::size_t>(p.T) * p.V;
  float *out = rig.poisoned(values), *residual = rig.poisoned(values);
  a.out = {out, p.V};
  if (!p.slot_residual) a.residual = {residual, p.V};
  Result result{rig.run(rig.ops().sdm, a)};
  if (!result.trouble.empty()) return result;
  result = {"", rig.download(out, values), dense_rows(rig, table, p), {}};
  if (!p.slot_residual) result.residual = rig.download(residual, values);
  return result;
}

TEST_CASE("SDM that writes and reads every slot is an unscaled GDN over its softmax weights") {
  for (const Backend* backend : every_backend()) {
    constexpr std::int32_t T = 130, n = 3, N = n * n, V = 12;
    Random random(75);
    SdmProblem p{T,
                 n,
                 V,
                 N,
                 N,
                 random.normals(T * 2 * n),
                 random.normals(T * 2 * n),
                 random.normals(T * V),
                 random.log_decays(T, false),
                 random.uniforms(T, 0, 1),
                 random.normals(N * V)};
    const auto weights = [&](const Values& scores) {
      Values all;
      for (std::int32_t t = 0; t < T; ++t) {
        double total = 0;
        for (std::int32_t i = 0; i < N; ++i)
          total += std::exp(static_cast<double>(scores[t * 2 * n + i / n]) + scores[t * 2 * n + n + i % n]);
        for (std::int32_t i = 0; i < N; ++i)
          all.push_back(static_cast<float>(
              std::exp(static_cast<double>(scores[t * 2 * n + i / n]) + scores[t * 2 * n + n + i % n]) / total));
      }
      return all;
    };
    const DeltaProblem gdn{
        T, 1, 1, N, V, weights(p.read_scores), weights(p.write_scores), p.v, p.log_decay, p.beta, {}, {}, p.initial, 1};

    check_equal(*backend, run_sdm(*backend, p), run_delta(*backend, &OpTable::gdn, gdn));
  }
}

TEST_CASE("the printed example of SDM: shared residual 3.75 and 5.75, slot residual 4 and 5.5") {
  for (const Backend* backend : every_backend()) {
    CAPTURE(std::string(backend->name));
    // Two slots of four with equal scores: k = [.5, .5]; alpha .8, beta .5, M = [2.5, 5], v = 10.
    SdmProblem p{1, 2, 1, 2, 2, {1, 0, 0, 0}, {1, 0, 0, 0}, {10}, {std::log(0.8F)}, {0.5F}, {2.5F, 5, 0, 0}};

    const Result shared = run_sdm(*backend, p);
    p.slot_residual = true;
    const Result slot = run_sdm(*backend, p);

    REQUIRE(shared.trouble == "");
    REQUIRE(slot.trouble == "");
    CHECK(shared.state[0] == doctest::Approx(3.75));
    CHECK(shared.state[1] == doctest::Approx(5.75));
    CHECK(shared.out[0] == doctest::Approx(4.75));
    CHECK(shared.residual[0] == doctest::Approx(7));
    CHECK(slot.state[0] == doctest::Approx(4));
    CHECK(slot.state[1] == doctest::Approx(5.5));
    CHECK(shared.state[2] == 0);
  }
}

TEST_CASE("writing through a forked table leaves the other one as it was") {
  for (const Backend* backend : every_backend()) {
    for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
      CAPTURE(std::string(backend->name));
      OpRig rig(*backend);
      constexpr std::int32_t n = 4, N = n * n, V = 8;
      Random random(76);
      const std::int32_t T = phase == Phase::kDecode ? 1 : 70;
      SdmProblem p{T,
                   n,
                   V,
                   4,
                   4,
                   random.normals(T * 2 * n),
                   random.normals(T * 2 * n),
                   random.normals(T * V),
                   random.log_decays(T, false),
                   random.uniforms(T, 0, 1),
                   random.normals(N * V)};
      SdmTableMemory first(rig, 1, N, V, 8 * N, 4);
      const auto run = [&](const SdmTableMemory& table) {
        SdmArgs a = bind_sdm(rig, p, table);
        a.phase = phase;
        a.out = {rig.poisoned(static_cast<std::size_t>(T) * V), V};
        return rig.run(rig.ops().sdm, a);
      };
      REQUIRE(run(first) == "");
      SdmTableMemory second = first.fork(rig);
      const Values before = dense_rows(rig, first, p);

      p.v = random.normals(T * V);
      REQUIRE(run(second) == "");

      CHECK(dense_rows(rig, first, p) == before);
      CHECK(dense_rows(rig, second, p) != before);
      REQUIRE(run(first) == "");
      CHECK(dense_rows(rig, first, p) == dense_rows(rig, second, p));  // the same tokens after the same past
    }
  }
}

}  // namespace
}  // namespace cairn::test
