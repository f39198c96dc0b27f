#include "backends/cpu/onednn_linear.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "backends/interface/scratch_layout.h"
#include "cairn/status.h"

#if defined(CAIRN_HAS_ONEDNN)

#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

// oneDNN's threads are OpenMP's: ours call it with one thread each. Weak: other builds of oneDNN have no OpenMP.
extern "C" {
__attribute__((weak)) void omp_set_num_threads(int);
__attribute__((weak)) int omp_get_max_threads(void);
}

namespace cairn::cpu {
namespace {

using dnnl::memory;

constexpr std::int64_t kTileRows = 64;  // rows of one primitive, the last padded: bits do not depend on the row count
constexpr std::int64_t kSliceOutputs =
    256;  // outputs of one primitive, in a dense block (a strided one is slow in 2.6)
constexpr std::int64_t kSmallest = 64 << 10;  // elements of a weight worth packing

std::atomic<OnednnUse> onednn_use{OnednnUse::kWithTiles};

/// oneDNN on one thread while this lives; the host's own setting comes back.
class OneOmpThread {
 public:
  OneOmpThread() : before_(omp_get_max_threads ? omp_get_max_threads() : 0) {
    if (omp_set_num_threads) omp_set_num_threads(1);
  }
  ~OneOmpThread() {
    if (omp_set_num_threads && before_ > 0) omp_set_num_threads(before_);
  }

 private:
  int before_;
};

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

/// The 2.x and 3.x ways to the same primitive.
dnnl::matmul::primitive_desc matmul_of(const memory::desc& x, const memory::desc& w, const memory::desc& y) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
#if DNNL_VERSION_MAJOR >= 3
  return {cpu_engine(), x, w, y, attributes};
#else
  return {dnnl::matmul::desc(x, w, y), attributes, cpu_engine()};
#endif
}

struct Slice {
  std::int64_t first, count;
  dnnl::matmul product;
  memory::desc x, w, y, scratchpad;
  memory weights;
};

/// LinearWeight::packed.
struct OnednnWeight {
  std::int64_t parts;  ///< of an activation: 2 (hi and lo), 1 where products may be bf16's
  std::vector<Slice> slices;
};

Slice make_slice(const LinearWeight& weight, std::int64_t parts, std::int64_t first, std::int64_t count) {
  using Type = memory::data_type;
  const std::int64_t in_dim = weight.in_dim;
  Slice slice;
  slice.first = first;
  slice.count = count;
  slice.x = memory::desc({parts * kTileRows, in_dim}, Type::bf16, memory::format_tag::ab);
  slice.y = memory::desc({parts * kTileRows, count}, Type::f32, memory::format_tag::ab);
  const dnnl::matmul::primitive_desc description =
      matmul_of(slice.x, memory::desc({in_dim, count}, Type::bf16, memory::format_tag::any), slice.y);
  slice.product = dnnl::matmul(description);
  slice.w = description.weights_desc();
  slice.scratchpad = description.scratchpad_desc();
  slice.weights = memory(slice.w, cpu_engine());
  const auto* rows = static_cast<const std::uint16_t*>(weight.data) + first * in_dim;
  memory stored(memory::desc({in_dim, count}, Type::bf16, memory::format_tag::ba), cpu_engine(),
                const_cast<std::uint16_t*>(rows));
  dnnl::stream stream(cpu_engine());
  dnnl::reorder(stored, slice.weights).execute(stream, stored, slice.weights);
  stream.wait();
  return slice;
}

std::uint16_t round_to_bf16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>(bits >> 16 | 0x40);  // NaN stays NaN
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float widen(std::uint16_t half) {
  const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

/// Parts of one row tile: [hi of kTileRows rows, lo of kTileRows rows], rows beyond the last one 0.
void split_tile(const LinearProduct& p, std::int64_t parts, std::int64_t first, std::uint16_t* to) {
  const std::int64_t in_dim = p.weight->in_dim;
  for (std::int64_t r = 0; r < kTileRows; ++r) {
    std::uint16_t *hi = to + r * in_dim, *lo = hi + kTileRows * in_dim;
    if (first + r >= p.rows) {
      std::memset(hi, 0, static_cast<std::size_t>(in_dim) * 2);
      if (parts == 2) std::memset(lo, 0, static_cast<std::size_t>(in_dim) * 2);
      continue;
    }
    const float* x = p.x + (first + r) * p.x_stride;
    for (std::int64_t k = 0; k < in_dim; ++k) {
      hi[k] = round_to_bf16(x[k]);
      if (parts == 2) lo[k] = round_to_bf16(x[k] - widen(hi[k]));
    }
  }
}

void finish_tile(const LinearProduct& p, const Slice& slice, std::int64_t parts, std::int64_t first,
                 const float* sums) {
  for (std::int64_t r = 0; r < kTileRows && first + r < p.rows; ++r) {
    const float *hi = sums + r * slice.count, *lo = hi + kTileRows * slice.count;
    float* y = p.y + (first + r) * p.y_stride + slice.first;
    for (std::int64_t c = 0; c < slice.count; ++c) {
      float value = parts == 2 ? hi[c] + lo[c] : hi[c];
      if (p.weight->bias) value += p.weight->bias[slice.first + c];
      y[c] = p.accumulate ? y[c] + value : value;
    }
  }
}

struct OnednnScratch {
  std::byte* thread;
  std::uint16_t* x;  ///< [tiles, parts * kTileRows, in_dim]
};

OnednnScratch carve(const LinearWeight& weight, std::int64_t rows, ScratchLayout& layout) {
  const auto tiles = static_cast<std::size_t>((rows + kTileRows - 1) / kTileRows);
  return {layout.take<std::byte>(kThreadScratchBytes),
          layout.take<std::uint16_t>(tiles * 2 * kTileRows * static_cast<std::size_t>(weight.in_dim))};
}

std::size_t sums_bytes(std::int64_t parts) {
  return static_cast<std::size_t>(parts * kTileRows * kSliceOutputs) * sizeof(float);
}

void run_slice(const Slice& slice, std::uint16_t* x, std::byte* scratch, std::size_t sums_size) {
  const OneOmpThread one;
  dnnl::stream stream(cpu_engine());
  memory in(slice.x, cpu_engine(), x), out(slice.y, cpu_engine(), scratch);
  memory pad(slice.scratchpad, cpu_engine(), scratch + sums_size);
  slice.product.execute(
      stream, {{DNNL_ARG_SRC, in}, {DNNL_ARG_WEIGHTS, slice.weights}, {DNNL_ARG_DST, out}, {DNNL_ARG_SCRATCHPAD, pad}});
  stream.wait();
}

bool is_for_onednn(const Device& device, const LinearWeight& weight) {
  const OnednnUse use = onednn_use.load();
  if (use == OnednnUse::kNever || weight.dtype != DType::kBF16) return false;
  if (use == OnednnUse::kAlways) return true;
  return device.features.amx_bf16 && static_cast<std::int64_t>(weight.out_dim) * weight.in_dim >= kSmallest;
}

}  // namespace

void use_onednn(OnednnUse use) { onednn_use.store(use); }

const char* onednn_version() {
#define CAIRN_TEXT_2(x) #x
#define CAIRN_TEXT(x) CAIRN_TEXT_2(x)
  return CAIRN_TEXT(DNNL_VERSION_MAJOR) "." CAIRN_TEXT(DNNL_VERSION_MINOR) "." CAIRN_TEXT(DNNL_VERSION_PATCH);
#undef CAIRN_TEXT
#undef CAIRN_TEXT_2
}

bool onednn_pack(Device& device, LinearWeight* weight, BackendError* error) {
  if (!is_for_onednn(device, *weight)) return true;
  try {
    const OneOmpThread one;
    auto packed = std::make_unique<OnednnWeight>();
    packed->parts = device.bf16_products ? 1 : 2;
    for (std::int64_t first = 0; first < weight->out_dim; first += kSliceOutputs) {
      packed->slices.push_back(
          make_slice(*weight, packed->parts, first, std::min(kSliceOutputs, weight->out_dim - first)));
      if (sums_bytes(packed->parts) + packed->slices.back().scratchpad.get_size() > kThreadScratchBytes) return true;
    }
    weight->packed = packed.release();
    return true;
  } catch (const std::bad_alloc&) {
    return backend_failure(error, CAIRN_STATUS_OUT_OF_MEMORY, "cpu: no memory to pack a weight of %d x %d",
                           weight->out_dim, weight->in_dim);
  } catch (const dnnl::error& failure) {
    if (failure.status != dnnl_out_of_memory) return true;  // no such product in this oneDNN: our own kernels take it
    return backend_failure(error, CAIRN_STATUS_OUT_OF_MEMORY, "cpu: no memory to pack a weight of %d x %d",
                           weight->out_dim, weight->in_dim);
  }
}

void onednn_unpack(LinearWeight* weight) {
  delete static_cast<OnednnWeight*>(weight->packed);
  weight->packed = nullptr;
}

std::size_t onednn_scratch_bytes(const LinearWeight& weight, std::int64_t rows) {
  ScratchLayout layout(nullptr);
  carve(weight, rows, layout);
  return layout.size_bytes();
}

bool onednn_multiply(Device& device, const LinearProduct& p, void* memory) {
  const OnednnWeight& packed = *static_cast<const OnednnWeight*>(p.weight->packed);
  ScratchLayout layout(memory);
  const OnednnScratch s = carve(*p.weight, p.rows, layout);
  const std::int64_t tiles = (p.rows + kTileRows - 1) / kTileRows,
                     tile_elements = packed.parts * kTileRows * p.weight->in_dim;
  device.pool.parallel_for(
      tiles, [&](std::int64_t tile) { split_tile(p, packed.parts, tile * kTileRows, s.x + tile * tile_elements); });
  const std::size_t sums_size = sums_bytes(packed.parts);
  std::atomic<bool> failed{false};
  device.pool.parallel_for(tiles * static_cast<std::int64_t>(packed.slices.size()), [&](std::int64_t item, int thread) {
    const Slice& slice = packed.slices[static_cast<std::size_t>(item / tiles)];
    const std::int64_t tile = item % tiles;
    std::byte* scratch = thread_scratch(device, thread, s.thread);
    try {
      run_slice(slice, s.x + tile * tile_elements, scratch, sums_size);
      finish_tile(p, slice, packed.parts, tile * kTileRows, reinterpret_cast<const float*>(scratch));
    } catch (const std::exception&) {
      failed = true;
    }
  });
  return !failed;
}

}  // namespace cairn::cpu

#else

namespace cairn::cpu {

void use_onednn(OnednnUse) {}
const char* onednn_version() { return "none"; }
bool onednn_pack(Device&, LinearWeight*, BackendError*) { return true; }
void onednn_unpack(LinearWeight*) {}
std::size_t onednn_scratch_bytes(const LinearWeight&, std::int64_t) { return 0; }
bool onednn_multiply(Device&, const LinearProduct&, void*) { return false; }

}  // namespace cairn::cpu

#endif
