// sdm: sparse delta memory, one token of one head.   Write set I_w with weights k_i, read set I_r with weights q_i:
//   M~[i] = exp(g) M[i] (key-weighted: exp(g k_i)),  i in I_w;    r = v - sum k_i M~[i];    M[i] = M~[i] + beta k_i r
//   slot residual: M[i] = M~[i] + beta k_i (v - M~[i]);           y = sum over I_r of q_i M[i]: read after write.
// Source: spec 5 and 8; D1 Fig. 2, App. A. Numerics: double inside a token; between tokens rows are f32 or bf16,
// rounded to nearest even when they are written: a token reads what it wrote as it was rounded.
#include <algorithm>
#include <cmath>

#include "backends/interface/scratch_layout.h"
#include "backends/reference/reference_ops.h"
#include "backends/reference/row_access.h"
#include "backends/reference/scalar_functions.h"
#include "backends/reference/sdm_address.h"
#include "backends/reference/unsupported.h"

namespace cairn::reference {
namespace {

struct SdmScratch {
  SdmAddressScratch write_address, read_address;
  std::int32_t* write_slots;
  std::int32_t* read_slots;
  double* write_weights;
  double* read_weights;
  double* residual_V;
  double* written_V;
  double* out_V;
};

SdmScratch carve(const SdmArgs& a, ScratchLayout& layout) {
  SdmScratch s;
  s.write_address = carve_sdm_address(a.side, a.write_count, layout);
  s.read_address = carve_sdm_address(a.side, a.read_count, layout);
  s.write_slots = layout.take<std::int32_t>(a.write_count);
  s.read_slots = layout.take<std::int32_t>(a.read_count);
  s.write_weights = layout.take<double>(a.write_count);
  s.read_weights = layout.take<double>(a.read_count);
  s.residual_V = layout.take<double>(a.value_dim);
  s.written_V = layout.take<double>(a.value_dim);
  s.out_V = layout.take<double>(a.value_dim);
  return s;
}

/// The slots of one head of one sequence: private or shared rows over the model's M0.
class Slots {
 public:
  Slots(const SdmArgs& args, const SdmTable& table, std::int32_t head)
      : a_(args), table_(table), first_(static_cast<std::int64_t>(head) * args.side * args.side) {}

  double value(std::int32_t slot, std::int32_t v) const {
    const std::int32_t index = table_.row_of_slot[first_ + slot];
    if (index >= 0) return element(row_at(index), a_.row_dtype, v);
    return a_.initial ? element(a_.initial, a_.initial_dtype, (first_ + slot) * a_.value_dim + v) : 0;
  }

  /// A slot that still equals M0, or whose row is shared, takes the next free row.
  void make_own(std::int32_t slot) const {
    std::int32_t& index = table_.row_of_slot[first_ + slot];
    if (index < table_.control[1]) index = table_.control[0]++;
  }

  void write(std::int32_t slot, const double* values_V) const {
    void* row = row_at(table_.row_of_slot[first_ + slot]);
    for (std::int32_t v = 0; v < a_.value_dim; ++v) {
      const auto value = static_cast<float>(values_V[v]);
      if (a_.row_dtype == DType::kBF16) {
        static_cast<std::uint16_t*>(row)[v] = to_bf16(value);
      } else {
        static_cast<float*>(row)[v] = value;
      }
    }
  }

 private:
  void* row_at(std::int32_t index) const {
    const std::int64_t first = static_cast<std::int64_t>(index % a_.rows_per_slab) * a_.value_dim;
    return static_cast<std::byte*>(table_.slabs[index / a_.rows_per_slab]) + first * dtype_bits(a_.row_dtype) / 8;
  }

  const SdmArgs& a_;
  const SdmTable& table_;
  std::int64_t first_;
};

void write_token(const SdmArgs& a, const Slots& slots, const float* v_V, double log_decay, double beta,
                 const SdmScratch& s) {
  const std::int32_t size = sdm_address_size(a.side, a.write_count);
  const auto decay = [&](std::int32_t i) {
    return std::exp(log_decay * (a.key_weighted_decay ? s.write_weights[i] : 1));
  };
  for (std::int32_t v = 0; v < a.value_dim; ++v) s.residual_V[v] = v_V[v];
  for (std::int32_t i = 0; i < size; ++i) {
    const double weight = s.write_weights[i] * decay(i);
    for (std::int32_t v = 0; v < a.value_dim; ++v) s.residual_V[v] -= weight * slots.value(s.write_slots[i], v);
  }
  for (std::int32_t i = 0; i < size; ++i) {
    const std::int32_t slot = s.write_slots[i];
    const double kept = decay(i), write = beta * s.write_weights[i];
    for (std::int32_t v = 0; v < a.value_dim; ++v) {
      const double decayed = kept * slots.value(slot, v);
      s.written_V[v] = decayed + write * (a.slot_residual ? v_V[v] - decayed : s.residual_V[v]);
    }
    slots.make_own(slot);
    slots.write(slot, s.written_V);
  }
}

void read_token(const SdmArgs& a, const Slots& slots, const SdmScratch& s) {
  std::fill_n(s.out_V, a.value_dim, 0.0);
  for (std::int32_t i = 0; i < sdm_address_size(a.side, a.read_count); ++i) {
    for (std::int32_t v = 0; v < a.value_dim; ++v) s.out_V[v] += s.read_weights[i] * slots.value(s.read_slots[i], v);
  }
}

void trace(std::int32_t size, std::int64_t head_row, const std::int32_t* slots, const double* weights,
           std::int32_t* out_slots, float* out_weights) {
  for (std::int32_t i = 0; i < size; ++i) {
    if (out_slots) out_slots[head_row * size + i] = slots[i];
    if (out_weights) out_weights[head_row * size + i] = static_cast<float>(weights[i]);
  }
}

void run_token(const SdmArgs& a, std::int32_t b, std::int64_t t, std::int32_t h, const SdmScratch& s) {
  const std::int64_t head_row = t * a.head_count + h;
  const Slots slots(a, a.tables[b], h);
  sdm_address(row(a.write_scores, t) + h * 2 * a.side, a.side, a.write_count, a.write_scale, s.write_address,
              s.write_slots, s.write_weights);
  sdm_address(row(a.read_scores, t) + h * 2 * a.side, a.side, a.read_count, a.read_scale, s.read_address, s.read_slots,
              s.read_weights);
  write_token(a, slots, row(a.v, t) + h * a.value_dim, a.log_decay[head_row], a.beta[head_row], s);
  read_token(a, slots, s);
  for (std::int32_t v = 0; v < a.value_dim; ++v) {
    (row(a.out, t) + h * a.value_dim)[v] = static_cast<float>(s.out_V[v]);
    if (a.residual.data) (row(a.residual, t) + h * a.value_dim)[v] = static_cast<float>(s.residual_V[v]);
  }
  trace(sdm_address_size(a.side, a.write_count), head_row, s.write_slots, s.write_weights, a.trace_write_slots,
        a.trace_write_weights);
  trace(sdm_address_size(a.side, a.read_count), head_row, s.read_slots, s.read_weights, a.trace_read_slots,
        a.trace_read_weights);
}

}  // namespace

const char* sdm_unsupported_reason(const SdmArgs& a) {
  if (a.initial_dtype != DType::kF32 && a.initial_dtype != DType::kBF16 && a.initial_dtype != DType::kF16) {
    return unsupported("sdm: M0 of %s is not supported (supported: f32, bf16, f16)", dtype_name(a.initial_dtype));
  }
  if (a.row_dtype != DType::kF32 && a.row_dtype != DType::kBF16) {
    return unsupported("sdm: rows of %s are not supported (supported: f32, bf16)", dtype_name(a.row_dtype));
  }
  if (a.side > 32768) return unsupported("sdm: side %d is not supported (supported: 1 to 32768)", a.side);
  return first_reason(
      {require_f32("sdm", a.dtype),
       require_sizes("sdm", {a.head_count, a.side, a.value_dim, a.write_count, a.read_count, a.rows_per_slab})});
}

std::size_t sdm_scratch_bytes(const SdmArgs& a) {
  ScratchLayout layout(nullptr);
  carve(a, layout);
  return layout.size_bytes();
}

void sdm_run(BackendQueue*, const SdmArgs& a, void* memory) {
  ScratchLayout layout(memory);
  const SdmScratch s = carve(a, layout);
  for (std::int32_t b = 0; b < a.batch.sequence_count; ++b) {
    for (std::int32_t t = a.batch.offsets_host[b]; t < a.batch.offsets_host[b + 1]; ++t) {
      for (std::int32_t h = 0; h < a.head_count; ++h) run_token(a, b, t, h, s);
    }
  }
}

}  // namespace cairn::reference
