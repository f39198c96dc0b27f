// Every operator, every backend at hand, every case: against the reference, and against itself by other schedules.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <sstream>

#include "backends/reference/reference_backend.h"
#include "tests/backends/op_cases.h"
#include "tests/support/backend_access.h"
#include "tests/support/tolerance.h"

namespace cairn::test {
namespace {

struct NamedOp {
  const char* name;
  std::vector<OpCase> cases;
};

// An operator of the list without a tolerance does not compile; one without cases does not link.
#define CAIRN_OP(field, Args, what) static_assert(op_tolerance(#field) >= 0, #field " has no tolerance");
#include "backends/interface/ops.inc"
#undef CAIRN_OP

const std::vector<NamedOp>& every_op() {
  static const std::vector<NamedOp> ops = {
#define CAIRN_OP(field, Args, what) {#field, field##_cases()},
#include "backends/interface/ops.inc"
#undef CAIRN_OP
  };
  return ops;
}

/// A backend, the element type of its activations, and whether their rows begin at multiples of 8 elements.
struct Subject {
  const Backend* backend;
  DType dtype;
  bool aligned_rows;
};

/// Every tested backend in f32 and in its own type; the reference too, unless backends were named.
std::vector<Subject> every_subject() {
  std::vector<Subject> subjects;
  if (!std::getenv("CAIRN_TEST_BACKENDS")) subjects.push_back({reference::reference_backend(), DType::kF32, false});
  for (const std::string& name : tested_backends()) {
    std::string reason;
    const Backend* backend = find_backend(name, &reason);
    INFO(name << ": " << reason);
    REQUIRE(backend != nullptr);
    for (const bool aligned : {false, true}) {
      subjects.push_back({backend, DType::kF32, aligned});
      if (backend->activation_dtype != DType::kF32) subjects.push_back({backend, backend->activation_dtype, aligned});
    }
  }
  return subjects;
}

Outcome read(const Subject& subject, const OpCase& c, const Schedule& schedule, Phase phase, std::int32_t threads = 0) {
  OpRig rig(*subject.backend, threads, subject.dtype);
  rig.align_rows(subject.aligned_rows);
  return c.read(rig, schedule, phase);
}

/// What the subject's prefill is held to, on the inputs that it sees.
Outcome read_reference(const Subject& subject, const OpCase& c) {
  OpRig rig(*reference::reference_backend(), 0, DType::kF32, subject.dtype == DType::kBF16);
  return c.read(rig, all_at_once(c.lengths), Phase::kPrefill);
}

/// max|got - want| / max|want|, or what is wrong.
double error_of(const Outcome::Output& got, const Outcome::Output& want) {
  if (got.values.size() != want.values.size()) return INFINITY;
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < want.values.size(); ++i) {
    if (!std::isfinite(got.values[i])) return INFINITY;
    largest = std::fmax(largest, std::fabs(static_cast<double>(want.values[i])));
    difference = std::fmax(difference, std::fabs(static_cast<double>(got.values[i]) - want.values[i]));
  }
  return difference == 0 ? 0 : difference / largest;
}

/// A fused operator that this backend lacks for these arguments: its parts are run instead, and tested.
bool has_no_form(const Outcome& outcome) { return outcome.trouble.find(kNoFusedForm) != std::string::npos; }

void check_close(const Outcome& got, const Outcome& want, double tolerance) {
  if (has_no_form(got)) return;
  CHECK(got.trouble == "");
  CHECK(want.trouble == "");
  if (!got.trouble.empty() || !want.trouble.empty()) return;
  REQUIRE(got.outputs.size() == want.outputs.size());
  for (std::size_t i = 0; i < want.outputs.size(); ++i) {
    CAPTURE(want.outputs[i].name);
    CHECK(error_of(got.outputs[i], want.outputs[i]) <= tolerance);
  }
}

/// The outputs that both have, bit for bit (checkpoints are only asked of whole batches).
void check_same_bits(const Outcome& got, const Outcome& want) {
  if (has_no_form(got) || has_no_form(want)) return;
  CHECK(got.trouble == "");
  CHECK(want.trouble == "");
  for (const Outcome::Output& output : want.outputs) {
    const auto same = std::find_if(got.outputs.begin(), got.outputs.end(),
                                   [&](const Outcome::Output& other) { return other.name == output.name; });
    if (same == got.outputs.end()) continue;
    CAPTURE(output.name);
    const auto same_bits = [](float a, float b) {
      return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
    };
    CHECK(std::equal(same->values.begin(), same->values.end(), output.values.begin(), output.values.end(), same_bits));
  }
}

double tolerance_of(const Subject& subject, const NamedOp& op, const OpCase& c) {
  const double f32 = c.tolerance >= 0 ? c.tolerance : op_tolerance(op.name);
  return subject.dtype == DType::kBF16 ? std::max(f32, op_tolerance_bf16(op.name)) : f32;
}

/// All of them, or those that CAIRN_TEST_OPS names ("gdn,sse"): for work on one operator.
bool is_wanted(const std::string& op) {
  const char* wanted = std::getenv("CAIRN_TEST_OPS");
  if (!wanted) return true;
  std::istringstream list(wanted);
  for (std::string name; std::getline(list, name, ',');) {
    if (name == op) return true;
  }
  return false;
}

/// What is claimed of a case.
enum class Claim { kPrefill, kDecode, kBatch, kDecodeBatch, kSplit, kThreads, kTwice };

bool applies(Claim claim, const OpCase& c) {
  if (claim == Claim::kDecode) return c.has_decode;
  if (claim == Claim::kDecodeBatch) return c.has_decode && c.lengths.size() > 1;
  return claim != Claim::kSplit || c.split_multiple > 0;
}

/// A case and the backend that it is tried on.
struct Trial {
  const Subject* subject;
  const OpCase* c;
};

/// The operator's trials of a claim: all, or for slow backends with CAIRN_TEST_ONE_IN=29 every 29th and at least one. Claims
/// begin at different ones.
std::vector<Trial> trials(Claim claim, const NamedOp& op, const std::vector<Subject>& subjects) {
  std::vector<Trial> all, some;
  for (const OpCase& c : op.cases) {
    if (!is_wanted(op.name) || !applies(claim, c)) continue;
    for (const Subject& subject : subjects) all.push_back({&subject, &c});
  }
  const char* one_in = std::getenv("CAIRN_TEST_ONE_IN");
  const std::size_t period = std::min(all.size(), std::max<std::size_t>(one_in ? std::strtoul(one_in, nullptr, 10) : 1, 1));
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i % period == 7 * static_cast<std::size_t>(claim) % period) some.push_back(all[i]);
  }
  return some;
}

template <class Check>
void for_every_case(Claim claim, Check check) {
  const std::vector<Subject> subjects = every_subject();
  for (const NamedOp& op : every_op()) {
    for (const Trial& trial : trials(claim, op, subjects)) {
      std::ostringstream where;
      where << trial.subject->backend->name << " " << dtype_name(trial.subject->dtype)
            << (trial.subject->aligned_rows ? " aligned: " : ": ") << op.name << ": " << trial.c->name;
      INFO(where.str());
      check(*trial.subject, op, *trial.c);
    }
  }
}

TEST_CASE("every operator has cases") {
  for (const NamedOp& op : every_op()) {
    CAPTURE(std::string(op.name));
    CHECK(!op.cases.empty());
  }
}

TEST_CASE("every backend's prefill equals the reference") {
  for_every_case(Claim::kPrefill, [](const Subject& subject, const NamedOp& op, const OpCase& c) {
    const Schedule whole = all_at_once(c.lengths);

    const Outcome got = read(subject, c, whole, Phase::kPrefill);

    check_close(got, read_reference(subject, c), tolerance_of(subject, op, c));
  });
}

TEST_CASE("every backend's decode token by token equals the reference's prefill") {
  for_every_case(Claim::kDecode, [](const Subject& subject, const NamedOp& op, const OpCase& c) {
    const Outcome got = read(subject, c, token_by_token(c.lengths), Phase::kDecode);

    Outcome want = read_reference(subject, c);
    std::erase_if(want.outputs, [](const Outcome::Output& output) { return output.name.starts_with("checkpoints"); });
    check_close(got, want, tolerance_of(subject, op, c));
  });
}

TEST_CASE("a batch gives each sequence in any slot the bits that it has alone") {
  for_every_case(Claim::kBatch, [](const Subject& subject, const NamedOp&, const OpCase& c) {
    const Outcome batch = read(subject, c, all_at_once(c.lengths), Phase::kPrefill);

    check_same_bits(read(subject, c, one_by_one(c.lengths), Phase::kPrefill), batch);
    check_same_bits(read(subject, c, reversed(c.lengths), Phase::kPrefill), batch);
  });
}

TEST_CASE("a decode in a batch gives the bits of a decode alone") {
  for_every_case(Claim::kDecodeBatch, [](const Subject& subject, const NamedOp&, const OpCase& c) {
    const Outcome batch = read(subject, c, token_by_token(c.lengths), Phase::kDecode);

    check_same_bits(read(subject, c, token_by_token_alone(c.lengths), Phase::kDecode), batch);
  });
}

TEST_CASE("a prefill split where it may be split gives the bits of the unsplit one") {
  for_every_case(Claim::kSplit, [](const Subject& subject, const NamedOp&, const OpCase& c) {
    const Outcome whole = read(subject, c, all_at_once(c.lengths), Phase::kPrefill);

    check_same_bits(read(subject, c, split_at(c.lengths, 64), Phase::kPrefill), whole);
    check_same_bits(read(subject, c, split_at(c.lengths, 128), Phase::kPrefill), whole);
    if (c.split_multiple == 1) check_same_bits(read(subject, c, split_at(c.lengths, 7), Phase::kPrefill), whole);
  });
}

TEST_CASE("the number of threads does not change bits") {
  for_every_case(Claim::kThreads, [](const Subject& subject, const NamedOp&, const OpCase& c) {
    const Schedule whole = all_at_once(c.lengths);

    const Outcome one = read(subject, c, whole, Phase::kPrefill, 1);

    check_same_bits(read(subject, c, whole, Phase::kPrefill, 3), one);
  });
}

TEST_CASE("the same inputs give the same bits twice") {
  for_every_case(Claim::kTwice, [](const Subject& subject, const NamedOp&, const OpCase& c) {
    const Schedule whole = all_at_once(c.lengths);

    check_same_bits(read(subject, c, whole, Phase::kPrefill), read(subject, c, whole, Phase::kPrefill));
  });
}

TEST_CASE("the reference refuses activations that are not f32") {
  const OpTable& ops = *reference::reference_backend()->ops;
  const LinearWeight weight{nullptr, DType::kF32, 4, 4};
  LinearArgs linear{};
  linear.weight = &weight;
  linear.dtype = DType::kBF16;
  DeltaRuleArgs delta{};
  delta.dtype = DType::kBF16;
  SparseGdnArgs sparse{};
  sparse.delta = delta;
  AddArgs add{};
  add.dtype = DType::kF16;

  CHECK(ops.linear.unsupported_reason(linear) != nullptr);
  CHECK(ops.gdn.unsupported_reason(delta) != nullptr);
  CHECK(ops.sparse_gdn.unsupported_reason(sparse) != nullptr);
  CHECK(ops.add.unsupported_reason(add) != nullptr);
}

}  // namespace
}  // namespace cairn::test
