// gpu_sparse_gdn_stages [TOKENS]: the stages of the sm_90a SparseGDN prefill one by one, and without one saving at a
// time, on the same masks. 16 key and 32 value heads of 128, bf16. The operator's source is included, to call
// its stages.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "backends/cuda/sparse_gdn_sm90.cu"
#include "backends/gpu/gpu_backend.h"

namespace cairn::gpu {
namespace {

constexpr int kKeyHeads = 16, kValueHeads = 32, kBaseTokens = 4096;

void require(bool good, const char* what) {
  if (good) return;
  std::printf("FAILED: %s: %s\n", what, cudaGetErrorString(cudaGetLastError()));
  std::exit(1);
}

template <class T>
T* allocate(std::size_t count) {
  void* memory = nullptr;
  require(cudaMalloc(&memory, count * sizeof(T)) == cudaSuccess, "cudaMalloc");
  require(cudaMemset(memory, 0, count * sizeof(T)) == cudaSuccess, "cudaMemset");
  return static_cast<T*>(memory);
}
/// `base` repeated until there are `count`.
template <class T>
T* upload(const std::vector<T>& base, std::size_t count) {
  T* memory = allocate<T>(count);
  require(
      cudaMemcpy(memory, base.data(), std::min(count, base.size()) * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess,
      "upload");
  for (std::size_t i = base.size(); i < count; i += base.size()) {
    require(cudaMemcpy(memory + i, memory, std::min(count - i, base.size()) * sizeof(T), cudaMemcpyDeviceToDevice) ==
                cudaSuccess,
            "repeat");
  }
  require(cudaDeviceSynchronize() == cudaSuccess, "upload");
  return memory;
}

std::uint16_t bf16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/// Unit queries and keys, values of different weight in different chunks, gates of a model.
SparseGdnArgs make_call(int tokens, std::vector<std::int32_t>* offsets) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> rows[2], values;
  for (auto& out : rows) {
    for (int i = 0; i < kBaseTokens * kKeyHeads; ++i) {
      float x[kDim], sum = 1e-6f;
      for (float& y : x) y = normal(random), sum += y * y;
      for (float y : x) out.push_back(bf16(y / std::sqrt(sum)));
    }
  }
  for (int t = 0; t < kBaseTokens; ++t) {
    static float weight;
    if (t % 64 == 0) weight = std::exp(0.8f * normal(random));
    for (int i = 0; i < kValueHeads * kDim; ++i) values.push_back(bf16(weight * normal(random)));
  }
  std::vector<float> g, beta, a, bias;
  std::uniform_real_distribution<float> uniform(0, 1);
  for (int h = 0; h < kValueHeads; ++h) {
    a.push_back(0.1f + 15.9f * uniform(random));
    const float dt = std::exp(std::log(1e-3f) + uniform(random) * (std::log(0.1f) - std::log(1e-3f)));
    bias.push_back(dt + std::log(-std::expm1(-dt)));
  }
  for (int i = 0; i < kBaseTokens * kValueHeads; ++i) {
    const int h = i % kValueHeads;
    g.push_back(-a[h] * std::log1p(std::exp(0.5f * normal(random) + bias[h])));
    beta.push_back(1 / (1 + std::exp(-normal(random))));
  }
  const auto n = static_cast<std::size_t>(tokens);
  SparseGdnArgs call = {};
  DeltaRuleArgs& d = call.delta;
  d.dtype = DType::kBF16, d.phase = Phase::kPrefill;
  *offsets = {0, tokens};
  d.batch = {1, tokens, upload(*offsets, 2), offsets->data()};
  d.key_heads = kKeyHeads, d.value_heads = kValueHeads, d.key_dim = d.value_dim = kDim;
  d.scale = 1 / std::sqrt(128.0f);
  d.q = {upload(rows[0], n * kKeyHeads * kDim), kKeyHeads * kDim},
  d.k = {upload(rows[1], n * kKeyHeads * kDim), kKeyHeads * kDim};
  d.v = {upload(values, n * kValueHeads * kDim), kValueHeads * kDim};
  d.out = {allocate<std::uint16_t>(n * kValueHeads * kDim), kValueHeads * kDim};
  d.log_decay = upload(g, n * kValueHeads), d.beta = upload(beta, n * kValueHeads);
  const std::vector<float*> states = {allocate<float>(std::size_t{kValueHeads} * kDim * kDim)};
  d.states = upload(states, 1);
  call.gate = d.v;
  call.norm_weight = upload(std::vector<float>(kDim, 1.0f), kDim);
  return call;
}

/// Median microseconds of what `queue_work` queues, each time after what `prepare` queues.
template <class Prepare, class Work>
double median_us(cudaStream_t stream, const Prepare& prepare, const Work& queue_work) {
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  std::vector<double> times;
  for (int i = 0; i < 12; ++i) {
    prepare();
    cudaEventRecord(begin, stream);
    queue_work();
    cudaEventRecord(end, stream);
    require(cudaEventSynchronize(end) == cudaSuccess, "a stage");
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    if (i >= 2) times.push_back(ms * 1e3);
  }
  std::sort(times.begin(), times.end());
  cudaEventDestroy(begin), cudaEventDestroy(end);
  return times[times.size() / 2];
}

template <class Work>
double median_us(cudaStream_t stream, const Work& queue_work) {
  return median_us(
      stream, [] {}, queue_work);
}

struct CorrectionArgs {
  SparsePrefillArgs prefill;
  unsigned char* w;
  int only_events;
};

/// 2^g of a lane's columns of one block of T', negated: pairs at 2 (lane % 4) and 8 after it.
__device__ __forceinline__ void scale_block(const uint4& block, const float* decay, int lane,
                                            std::uint32_t (&scaled)[4]) {
  const std::uint32_t words[4] = {block.x, block.y, block.z, block.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* g = decay + i / 2 * 8 + 2 * (lane % 4);
    scaled[i] = pack_bf16(-low_bf16(words[i]) * sm90::exp2_fast(g[0]), -high_bf16(words[i]) * sm90::exp2_fast(g[1]));
  }
}

/// W of every chunk and value head, stored as a walk would read it: ours never forms it.
__global__ void __launch_bounds__(128) form_corrections_kernel(const __grid_constant__ CorrectionArgs args) {
  using namespace sm90;
  extern __shared__ __align__(1024) unsigned char memory[];
  const SparsePrefillArgs& a = args.prefill;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, chunk = blockIdx.x, head = blockIdx.y,
            group = head / a.per_group();
  if (args.only_events && !a.select.s.mask[static_cast<std::int64_t>(group) * a.select.chunk_begin[1] + chunk]) return;
  unsigned char* w = memory + 2 * kTileBytes;
  const std::uint32_t full = shared_address(memory + 4 * kTileBytes);
  if (thread == 0) {
    barrier_init(full, 1);
    fence_barrier_init();
    barrier_expect(full, 2 * kTileBytes);
    for (int i = 0; i < 2; ++i)
      load_tile(shared_address(memory) + i * kTileBytes, &a.k, group * kDim + 64 * i, chunk * kChunk, full);
  }
  const std::int64_t cell = static_cast<std::int64_t>(chunk) * a.value_heads + head;
  const InverseRow row = load_inverse(inverse_lines(a, 0, chunk_rows(a, 0, chunk), head), 0, warp, lane);
  std::uint32_t own[4], left[4] = {0, 0, 0, 0}, words[4][4];
  scale_block(row.own, a.work.decay + cell * kChunk + 16 * warp, lane, own);
  if (warp > 0) scale_block(row.left, a.work.decay + cell * kChunk + 16 * (warp - 1), lane, left);
  for (int i = 0; i < 4; ++i) {
    for (int n = 0; n < 4; ++n) words[i][n] = i == warp ? own[n] : i + 1 == warp ? left[n] : 0;
    sm90::pin(words[i]);
  }
  __syncthreads();
  barrier_wait(full, 0);
  float sums[64];
  products_begin();
#pragma unroll
  for (int i = 0; i < 4; ++i)
    multiply_64x128_rows(sums, words[i], operand_transposed(shared_address(memory) + 2048 * i), i > 0);
  products_commit();
  products_wait<0>();
  sm90::pin(sums);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    std::uint32_t rounded[4];
    round_sums(sums, i, rounded);
    store_matrices(shared_address(w) + i / 4 * kTileBytes + fragment_address(warp, lane, 2 * (i % 4)), rounded);
  }
  fence_engines();
  __syncthreads();
  if (thread == 0) {
    store_bytes(args.w + cell * 2 * kTileBytes, shared_address(w), 2 * kTileBytes);
    stores_commit();
    stores_wait<0>();
  }
}

/// Every pair reads a state of its own.
__global__ void unmap_states_kernel(SparseSelectArgs a) {
  const int pairs = a.pair_count(0), i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < pairs * a.group_count) a.s.entry_snapshot[i] = i % pairs;
}
__global__ void place_all_states_kernel(SparseSelectArgs a) {
  if (static_cast<int>(threadIdx.x) < a.group_count)
    a.s.first_snapshot[threadIdx.x] = static_cast<int>(threadIdx.x) * (a.pair_count(0) + 1);
}

struct Stages {
  double intra, select, events, outputs, together;
};

class Bench {
 public:
  explicit Bench(int tokens) : tokens_(tokens) {
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) == cudaSuccess, "stream");
    require(read_properties(0, &device_.properties) == kSuccess, "device");
    queue_ = {&device_, stream_, false};
    call_ = make_call(tokens, &offsets_);
    call_.policy = SparsePolicy::kAll;  // room for the states of every pair
    scratch_ = allocate<unsigned char>(own_scratch_bytes(call_));
    chunks_ = (tokens + kChunk - 1) / kChunk;
  }

  /// Describes the call under a policy, in scratch that is large enough for any.
  SparsePrefillArgs describe_call(SparsePolicy policy) {
    SparsePrefillArgs args = {};
    require(describe(call_, scratch_, &args), "describe");
    args.select.policy = policy;
    place_sequences(call_, args, 0, 1);
    return args;
  }
  Launcher launcher() { return {reinterpret_cast<BackendQueue*>(&queue_), "stages"}; }
  void finish() { require(cudaStreamSynchronize(stream_) == cudaSuccess && queue_.error == kSuccess, "stages"); }

  Stages time_stages(const SparsePrefillArgs& args) {
    const Launcher run = launcher();
    const auto everything = [&] {
      clear_progress(run, args), launch_intra(run, args), select_sparse_gdn(run, args.select), launch_events(run, args),
          launch_outputs(run, args);
    };
    Stages times = {};
    times.together = median_us(stream_, everything);
    times.intra = median_us(stream_, [&] { launch_intra(run, args); });
    times.select = median_us(stream_, [&] { select_sparse_gdn(run, args.select); });
    times.events = time_events(args);
    times.outputs = time_outputs(args);
    finish();
    return times;
  }
  /// A walk and the outputs overwrite T' of the chunks.
  void restore_inverses(const SparsePrefillArgs& args) {
    clear_progress(launcher(), args);
    launch_intra(launcher(), args);
  }
  template <Walk kWalk = kEventRows>
  double time_events(const SparsePrefillArgs& args) {
    return median_us(
        stream_, [&] { restore_inverses(args); }, [&] { launch_events<kWalk>(launcher(), args); });
  }
  /// After a walk: nothing is waited for.
  template <Walk kWalk = kEventRows>
  double time_outputs(const SparsePrefillArgs& args) {
    return median_us(
        stream_,
        [&] {
          restore_inverses(args);
          launch_events<kWalk>(launcher(), args);
          require(set_async(args.work.progress, 0x7f, static_cast<std::size_t>(kValueHeads) * 4 * sizeof(int),
                            stream_) == kSuccess,
                  "progress");
        },
        [&] { launch_outputs(launcher(), args); });
  }

  void report() {
    const SparsePrefillArgs sparse = describe_call(SparsePolicy::kAdaptive), dense = describe_call(SparsePolicy::kAll);
    const Stages all = time_stages(dense), kept = time_stages(sparse);  // the sparse masks stay
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(kKeyHeads) * chunks_);
    require(cudaMemcpy(mask.data(), sparse.select.s.mask, mask.size(), cudaMemcpyDeviceToHost) == cudaSuccess, "mask");
    std::vector<std::int32_t> rows(2);
    require(cudaMemcpy(rows.data(), sparse.select.s.tier_rows, 8, cudaMemcpyDeviceToHost) == cudaSuccess, "tiers");
    std::printf("T %d, keep %.1f %%, groups high %d medium %d low %d; us a layer\n", tokens_,
                100.0 * std::count(mask.begin(), mask.end(), 1) / mask.size(), rows[0], rows[1],
                kKeyHeads - rows[0] - rows[1]);
    print("intra (+ select)", all.intra, kept.intra + kept.select, "paper 157.04 / 63.23 ms = 2.484, native with W");
    print("  intra alone", all.intra, kept.intra, "");
    std::printf("  %-28s %27.1f\n", "select", kept.select);
    print("H (events)", all.events, kept.events, "paper 161.18 / 80.61 = 1.999");
    print("O (outputs)", all.outputs, kept.outputs, "paper 129.74 / 86.66 = 1.497");
    print("all stages, overlapped", all.together, kept.together, "paper 447.97 / 230.61 = 1.943");
    report_savings(sparse, kept);
  }

  void report_savings(const SparsePrefillArgs& sparse, const Stages& kept) {
    const Launcher run = launcher();
    CorrectionArgs w = {
        sparse, allocate<unsigned char>(static_cast<std::size_t>(chunks_) * kValueHeads * 2 * sm90::kTileBytes), 0};
    const auto form = [&] {
      run(form_corrections_kernel, dim3(static_cast<unsigned>(chunks_), kValueHeads), dim3(128),
          4 * sm90::kTileBytes + 64, w);
    };
    restore_inverses(sparse);
    const double w_all = median_us(stream_, form);
    w.only_events = 1;
    const double w_events = median_us(stream_, form);
    print("W for all chunks / for events", w_all, w_events, "");
    const double sum = kept.intra + kept.events + kept.outputs;
    print("deferred W, of intra + H + O", sum + w_all, sum, "paper 1.336; the walk never forms W");
    print("CSR rows, of H", time_events<kVisitAllChunks>(sparse), kept.events, "paper 1.149");
    SparsePrefillArgs loose = sparse;
    run(place_all_states_kernel, dim3(1), dim3(32), 0, loose.select);
    const double all_states = time_events<kStoreAllStates>(loose);
    print("compact states, of H", all_states, kept.events, "paper 1.398");
    run(unmap_states_kernel, dim3(static_cast<unsigned>(chunks_)), dim3(32), 0, loose.select);
    const double unmapped = time_outputs<kStoreAllStates>(loose);
    print("mapped O, of O", unmapped, kept.outputs, "paper 1.239");
    print("compact and mapped, of I + H + O", kept.intra + all_states + unmapped, sum, "paper 1.226");
    finish();
  }

 private:
  static void print(const char* name, double without, double with, const char* note) {
    std::printf("  %-32s %10.1f %12.1f  ratio %.3f   %s\n", name, without, with, without / with, note);
    std::fflush(stdout);
  }

  int tokens_, chunks_ = 0;
  cudaStream_t stream_ = nullptr;
  Device device_ = {};
  Queue queue_ = {};
  std::vector<std::int32_t> offsets_;
  SparseGdnArgs call_ = {};
  unsigned char* scratch_ = nullptr;
};

}  // namespace
}  // namespace cairn::gpu

int main(int argc, char** argv) {
  cairn::gpu::Bench(argc > 1 ? std::atoi(argv[1]) : 131072).report();
  return 0;
}
