// y = x W^T as dot products along the inputs: a tile of rows times four outputs stays in registers, lanes run along
// in_dim.
//   Shapes    x [M, K] f32, W [N, K] as stored (f32, bf16, f16, i8, i4), y [M, N] f32
//   Traffic   few rows: W once, as stored. More rows: a block of W is converted to f32 once and stays in the L2 cache,
//   while
//             a tile of x stays in the L1 cache
//   Numerics  products and sums in f32 (fused where the machine does); the order is told at kLinearBlockInputs
#include "backends/cpu/linear_kernels.h"
#include "backends/cpu/vector_lanes.h"

namespace cairn::cpu::CAIRN_ISA {
namespace {

constexpr int kTileRows = kLanes == 16 ? 6 : 2;  // 32 registers: 24 sums, 4 weights, x; 16 registers: 8 sums
constexpr int kTileOutputs = 4;

// How a weight element becomes f32. `at` reads kLanes elements; `first` the n < kLanes last ones of a row, 0 beyond.
// `at` also asks for the same inputs of the next tile of outputs: rows of 2 KiB are too short for the processor's own
// prefetcher (128 MiB of bf16, 1 row: 9.1 to 12.7 GB/s on a busy core; 4 rows: 7.2 to 11.1).

struct F32Weight {
  const float* data;
  std::int64_t stride;
  Lanes at(std::int64_t out, std::int32_t k) const {
    __builtin_prefetch(data + (out + kTileOutputs) * stride + k, 0, 2);
    return load(data + out * stride + k);
  }
  Lanes first(std::int64_t out, std::int32_t k, int n) const { return load_first(data + out * stride + k, n); }
};

struct BF16 {
  using Element = std::uint16_t;
  static Lanes read(const Element* p) { return load_bf16(p); }
};
struct F16 {
  using Element = std::uint16_t;
  static Lanes read(const Element* p) { return load_f16(p); }
};
struct I8 {
  using Element = std::int8_t;
  static Lanes read(const Element* p) { return load_i8(p); }
};

template <class Type>
struct NarrowWeight {
  using Element = typename Type::Element;
  const Element* data;
  std::int64_t stride;
  Lanes at(std::int64_t out, std::int32_t k) const {
    __builtin_prefetch(data + (out + kTileOutputs) * stride + k, 0, 2);
    return Type::read(data + out * stride + k);
  }
  Lanes first(std::int64_t out, std::int32_t k, int n) const {
    Element last[kLanes] = {};
    for (int i = 0; i < n; ++i) last[i] = data[out * stride + k + i];
    return Type::read(last);
  }
};

/// Groups of 32 or 64 inputs share a scale; kLanes divides both, and in_dim is a multiple of the group.
struct I4Weight {
  const std::uint8_t* data;
  const float* scales;
  std::int64_t in_dim;
  std::int32_t group_size;
  Lanes at(std::int64_t out, std::int32_t k) const {
    std::int8_t nibbles[kLanes];
    const std::uint8_t* pairs = data + (out * in_dim + k) / 2;
    for (int i = 0; i < kLanes / 2; ++i) {
      nibbles[2 * i] = static_cast<std::int8_t>(static_cast<std::int8_t>(pairs[i] << 4) >> 4);
      nibbles[2 * i + 1] = static_cast<std::int8_t>(static_cast<std::int8_t>(pairs[i]) >> 4);
    }
    return load_i8(nibbles) * broadcast(scales[out * (in_dim / group_size) + k / group_size]);
  }
  Lanes first(std::int64_t, std::int32_t, int) const { return broadcast(0.0f); }  // never: the row has no remainder
};

/// One block of the piece's weights as f32: for each four outputs, kLanes inputs of each in turn, so that a tile reads
/// one stream.
struct PackedWeight {
  float* data;
  std::int64_t first_out;
  std::int32_t first_in;
  float* place(std::int64_t out, std::int32_t k) const {
    const std::int64_t o = out - first_out;
    return data + o / kTileOutputs * kTileOutputs * kLinearBlockInputs +
           static_cast<std::int64_t>(k - first_in) * kTileOutputs + o % kTileOutputs * kLanes;
  }
  Lanes at(std::int64_t out, std::int32_t k) const { return load(place(out, k)); }
  Lanes first(std::int64_t out, std::int32_t k, int) const { return load(place(out, k)); }
};

/// Reads a weight and keeps its f32 form for the row tiles that follow.
template <class Weight>
struct PackingWeight {
  Weight weight;
  PackedWeight packed;
  Lanes at(std::int64_t out, std::int32_t k) const {
    const Lanes w = weight.at(out, k);
    store(packed.place(out, k), w);
    return w;
  }
  Lanes first(std::int64_t out, std::int32_t k, int n) const {
    const Lanes w = weight.first(out, k, n);
    store(packed.place(out, k), w);
    return w;
  }
};

/// Inputs [begin, end) of one block; the first one sets y, later ones add to it.
struct InputBlock {
  std::int32_t begin, end;
  bool is_first;
};

/// sums = kRows rows of x times kOutputs rows of W over one block; sums [kRows, kLinearBlockOutputs].
template <int kRows, int kOutputs, class Weight>
inline void multiply_tile(const float* x, std::int64_t x_stride, const Weight& weight, std::int32_t out,
                          InputBlock block, float* sums) {
  Lanes total[kRows][kOutputs];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kOutputs; ++c) total[r][c] = broadcast(0.0f);
  }
  std::int32_t k = block.begin;
  for (; k + kLanes <= block.end; k += kLanes) {
    Lanes w[kOutputs];
    for (int c = 0; c < kOutputs; ++c) w[c] = weight.at(out + c, k);
    for (int r = 0; r < kRows; ++r) {
      const Lanes x_lanes = load(x + r * x_stride + k);
      for (int c = 0; c < kOutputs; ++c) total[r][c] = fma(x_lanes, w[c], total[r][c]);
    }
  }
  if (const int rest = block.end - k; rest > 0) {
    Lanes w[kOutputs];
    for (int c = 0; c < kOutputs; ++c) w[c] = weight.first(out + c, k, rest);
    for (int r = 0; r < kRows; ++r) {
      const Lanes x_lanes = load_first(x + r * x_stride + k, rest);
      for (int c = 0; c < kOutputs; ++c) total[r][c] = fma(x_lanes, w[c], total[r][c]);
    }
  }
  int r = 0;
  if constexpr (kOutputs == 4) {
    for (; r + 4 <= kRows; r += 4) sum16(total + r, sums + r * kLinearBlockOutputs, kLinearBlockOutputs);
  }
  for (; r < kRows; ++r) {
    if constexpr (kOutputs == 4) {
      sum4(total[r][0], total[r][1], total[r][2], total[r][3], sums + r * kLinearBlockOutputs);
    } else {
      sums[r * kLinearBlockOutputs] = sum(total[r][0]);
    }
  }
}

/// Brings one row's sums over a block into y.
inline void finish_row(const LinearPiece& p, bool is_first, std::int64_t row, const float* sums) {
  const LinearWeight& w = *p.weight;
  const int count = p.out_end - p.out_begin;
  float* y = p.y + row * p.y_stride + p.out_begin;
  for (int c = 0; c < count; c += kLanes) {
    const int n = count - c < kLanes ? count - c : kLanes;
    Lanes value = load_first(sums + c, n);
    if (w.dtype == DType::kI8) value = value * load_first(w.scales + p.out_begin + c, n);
    if (is_first && w.bias) value = value + load_first(w.bias + p.out_begin + c, n);
    if (!is_first || p.accumulate) value = value + load_first(y + c, n);
    store_first(y + c, n, value);
  }
}

/// All outputs of the piece for kRows rows.
template <int kRows, class Weight>
void multiply_rows(const LinearPiece& p, const Weight& weight, InputBlock block, std::int64_t row) {
  alignas(64) float sums[kRows * kLinearBlockOutputs];
  const float* x = p.x + row * p.x_stride;
  std::int32_t out = p.out_begin;
  for (; out + kTileOutputs <= p.out_end; out += kTileOutputs) {
    multiply_tile<kRows, kTileOutputs>(x, p.x_stride, weight, out, block, sums + (out - p.out_begin));
  }
  for (; out < p.out_end; ++out) multiply_tile<kRows, 1>(x, p.x_stride, weight, out, block, sums + (out - p.out_begin));
  for (int r = 0; r < kRows; ++r) finish_row(p, block.is_first, row + r, sums + r * kLinearBlockOutputs);
}

template <class Weight>
void multiply_last_rows(const LinearPiece& p, const Weight& weight, InputBlock block, std::int64_t row) {
  switch (p.row_end - row) {
    case 1: return multiply_rows<1>(p, weight, block, row);
    case 2: return multiply_rows<2>(p, weight, block, row);
    case 3: return multiply_rows<3>(p, weight, block, row);
    case 4: return multiply_rows<4>(p, weight, block, row);
    case 5: return multiply_rows<5>(p, weight, block, row);
    default: return;
  }
}

/// Tiles from `row` on, then the last rows.
template <class Weight>
void multiply_tiles(const LinearPiece& p, const Weight& weight, InputBlock block, std::int64_t row) {
  for (; row + kTileRows <= p.row_end; row += kTileRows) multiply_rows<kTileRows>(p, weight, block, row);
  multiply_last_rows(p, weight, block, row);
}

/// Packing costs about as much as one tile: two tiles read the weights as stored.
template <class Weight>
void multiply_block(const LinearPiece& p, const Weight& weight, InputBlock block) {
  if (p.row_end - p.row_begin <= 2 * kTileRows) return multiply_tiles(p, weight, block, p.row_begin);
  const PackedWeight packed = {p.packed, p.out_begin, block.begin};
  multiply_rows<kTileRows>(p, PackingWeight<Weight>{weight, packed}, block, p.row_begin);
  multiply_tiles(p, packed, block, p.row_begin + kTileRows);
}

template <class Weight>
void multiply(const LinearPiece& p, const Weight& weight) {
  const std::int32_t in_dim = p.weight->in_dim;
  const std::int32_t blocks = (in_dim + kLinearBlockInputs - 1) / kLinearBlockInputs;
  const std::int32_t size = ((in_dim + blocks - 1) / blocks + 63) / 64 * 64;
  for (std::int32_t begin = 0; begin < in_dim; begin += size) {
    multiply_block(p, weight, {begin, begin + size < in_dim ? begin + size : in_dim, begin == 0});
  }
}

/// f(reader of the weight's storage).
template <class F>
void with_weight(const LinearWeight& w, const F& f) {
  const std::int64_t stride = w.in_dim;
  switch (w.dtype) {
    case DType::kF32: return f(F32Weight{static_cast<const float*>(w.data), stride});
    case DType::kBF16: return f(NarrowWeight<BF16>{static_cast<const std::uint16_t*>(w.data), stride});
    case DType::kF16: return f(NarrowWeight<F16>{static_cast<const std::uint16_t*>(w.data), stride});
    case DType::kI8: return f(NarrowWeight<I8>{static_cast<const std::int8_t*>(w.data), stride});
    case DType::kI4: return f(I4Weight{static_cast<const std::uint8_t*>(w.data), w.scales, stride, w.group_size});
    default: return;  // refused by unsupported_reason
  }
}

void run_piece(const LinearPiece& p) {
  with_weight(*p.weight, [&](const auto& weight) { multiply(p, weight); });
}

void widen_row(const LinearWeight& w, std::int32_t out, float* to) {
  const Lanes scale = broadcast(w.dtype == DType::kI8 ? w.scales[out] : 1.0f);
  with_weight(w, [&](const auto& weight) {
    std::int32_t k = 0;
    for (; k + kLanes <= w.in_dim; k += kLanes) store(to + k, weight.at(out, k) * scale);
    if (k < w.in_dim) store_first(to + k, w.in_dim - k, weight.first(out, k, w.in_dim - k) * scale);
  });
}

}  // namespace

const LinearKernels kLinearKernels = {run_piece, widen_row};

}  // namespace cairn::cpu::CAIRN_ISA
