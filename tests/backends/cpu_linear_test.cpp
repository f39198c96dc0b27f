// What the cpu backend's matrix products promise beyond tolerance: a row's bits, on every instruction set.
#include <doctest/doctest.h>

#include <bit>
#include <thread>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/onednn_linear.h"
#include "tests/backends/cpu_feature_sets.h"
#include "tests/backends/linear_cases.h"
#include "tests/support/op_rig.h"
#include "tests/support/random_inputs.h"

namespace cairn::test {
namespace {

/// y [rows, out_dim] of the first `rows` rows of x, by `threads` threads.
std::vector<float> product(OpRig& rig, const LinearWeight& weight, const std::vector<float>& x, std::int32_t first,
                           std::int32_t rows) {
  LinearArgs args{};
  args.phase = Phase::kPrefill;
  args.token_count = rows;
  args.weight = &weight;
  const std::size_t mark = rig.mark();
  args.in = {rig.upload(x) + static_cast<std::int64_t>(first) * weight.in_dim, weight.in_dim};
  float* y = rig.poisoned<float>(static_cast<std::size_t>(rows) * weight.out_dim);
  args.out = {y, weight.out_dim};
  CHECK(rig.run(rig.ops().linear, args) == "");
  std::vector<float> result = rig.download(y, static_cast<std::size_t>(rows) * weight.out_dim);
  rig.release_to(mark);
  return result;
}

bool same_bits(const float* a, const float* b, std::size_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}

void check_rows(DType dtype, std::int32_t out_dim, std::int32_t in_dim) {
  constexpr std::int32_t kRows = 130;
  Random random(5);
  const HostWeight host = random_weight(random, out_dim, in_dim, dtype, true, 32);
  const std::vector<float> x = random.normals(static_cast<std::size_t>(kRows) * in_dim);
  OpRig one(*cpu::cpu_backend(), 1), three(*cpu::cpu_backend(), 3);
  const LinearWeight weight = bind_weight(one, host), weight_three = bind_weight(three, host);
  const auto width = static_cast<std::size_t>(out_dim);

  const std::vector<float> whole = product(one, weight, x, 0, kRows);

  CHECK(same_bits(product(three, weight_three, x, 0, kRows).data(), whole.data(), whole.size()));
  for (std::int32_t rows = 1; rows < kRows; ++rows) {
    const std::int32_t first = (rows * 37) % (kRows - rows);
    const std::vector<float> part = product(one, weight, x, first, rows);
    CAPTURE(rows);
    CHECK(same_bits(part.data(), whole.data() + static_cast<std::size_t>(first) * width, part.size()));
  }
}

TEST_CASE("a row of a linear has the same bits among 1 to 130 rows, at any place, on 1 and 3 threads") {
  for (const cpu::CpuFeatures& most : kCpuFeatureSets) {
    const FeatureLimit limit(most);
    CAPTURE(most.avx2);
    CAPTURE(most.avx512);
    check_rows(DType::kF32, 37, 1100);  // more inputs than one block of the sum
    check_rows(DType::kBF16, 130, 200);
    check_rows(DType::kF16, 9, 77);
    check_rows(DType::kI8, 66, 1030);
    check_rows(DType::kI4, 40, 96);
  }
}

TEST_CASE("oneDNN's prefill of bf16 weights is within the vectors' tolerance, and a row's bits are its own") {
  constexpr std::int32_t kRows = 130, kOut = 300, kIn = 520;
  Random random(7);
  const HostWeight host = random_weight(random, kOut, kIn, DType::kBF16, true, 32);
  const std::vector<float> x = random.normals(static_cast<std::size_t>(kRows) * kIn);
  OpRig own(*cpu::cpu_backend(), 1), one(*cpu::cpu_backend(), 1), three(*cpu::cpu_backend(), 3);
  LinearWeight plain = bind_weight(own, host), packed = bind_weight(one, host), packed_three = bind_weight(three, host);
  const std::vector<float> want = product(own, plain, x, 0, kRows);

  cpu::use_onednn(cpu::OnednnUse::kAlways);
  one.pack(&packed);
  three.pack(&packed_three);
  cpu::use_onednn(cpu::OnednnUse::kWithTiles);
  MESSAGE("oneDNN " << std::string(cpu::onednn_version()) << std::string(packed.packed ? ", packed" : ", not used"));
  const std::vector<float> whole = product(one, packed, x, 0, kRows);

  float largest = 0, difference = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    largest = std::fmax(largest, std::fabs(want[i]));
    difference = std::fmax(difference, std::fabs(whole[i] - want[i]));
  }
  MESSAGE("error " << difference / largest);
  CHECK(difference <= 1e-5f * largest);
  CHECK(same_bits(product(three, packed_three, x, 0, kRows).data(), whole.data(), whole.size()));
  for (const std::int32_t rows : {1, 2, 63, 64, 65, 129}) {
    const std::vector<float> part = product(one, packed, x, kRows - rows, rows);
    CAPTURE(rows);
    CHECK(same_bits(part.data(), whole.data() + static_cast<std::size_t>(kRows - rows) * kOut, part.size()));
  }
  one.clear();
  three.clear();
}

TEST_CASE("two threads that share a device get the bits that each gets alone") {
  Random random(6);
  OpRig rig(*cpu::cpu_backend(), 2);
  const HostWeight host = random_weight(random, 200, 256, DType::kBF16, false, 32);
  LinearWeight weight = bind_weight(rig, host);
  const std::vector<float> x = random.normals(40 * 256);
  const std::vector<float> want = product(rig, weight, x, 0, 40);
  const auto multiply_often = [&](bool* all_same) {
    BackendError error;
    BackendQueue* queue = rig.backend().create_queue(rig.device(), nullptr, &error);
    LinearArgs args{};
    args.token_count = 40;
    args.weight = &weight;
    args.in = {x.data(), 256};
    const std::size_t scratch_bytes = rig.ops().linear.scratch_bytes(args);
    void* scratch = rig.backend().allocate(rig.device(), scratch_bytes, MemoryKind::kDevice, &error);
    std::vector<float> y(want.size());
    args.out = {y.data(), 200};
    for (int i = 0; i < 100; ++i) {
      std::fill(y.begin(), y.end(), NAN);
      rig.ops().linear.run(queue, args, scratch);
      *all_same = *all_same && same_bits(y.data(), want.data(), y.size());
    }
    rig.backend().release(rig.device(), scratch, scratch_bytes, MemoryKind::kDevice);
    rig.backend().destroy_queue(queue);
  };

  bool first = true, second = true;
  std::thread a(multiply_often, &first), b(multiply_often, &second);
  a.join();
  b.join();

  CHECK(first);
  CHECK(second);
}

}  // namespace
}  // namespace cairn::test
