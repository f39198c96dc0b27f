// setjmp between fibres is no misuse of the stack, whatever a fortified C library thinks.
#undef _FORTIFY_SOURCE
#include "backends/gpu/platform/gpu_emulator.h"

#include <csetjmp>
#include <cstdio>
#include <memory>
#include <vector>

#include <ucontext.h>

#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

namespace cairn::gpu {
namespace {

constexpr std::size_t kStackBytes = 256 * 1024;  // sanitizers make frames several times as long
constexpr std::size_t kWarp = CAIRN_EMULATED_WARP, kMatrixGroup = 32;

/// Where threads [first, first + count) wait for each other. Threads that have returned are not waited for.
struct Gate {
  std::size_t first, count, live, arrived = 0;
};

struct Fibre {
  ucontext_t entry;  ///< the first turn only: later ones jump, which asks the kernel for nothing
  std::jmp_buf place_in_code;
  std::unique_ptr<unsigned char[]> stack{new unsigned char[kStackBytes]};
  EmulatedThread place;
  const Gate* waits_at;
  bool has_started, is_done;
  unsigned exchange_count, product_count;
};

/// A block: its fibres take turns; a turn ends at a gate where others are awaited, or at the end.
struct Block {
  std::vector<Fibre> fibres;
  Gate all;
  std::vector<Gate> warps, matrix_groups;
  std::vector<std::uint64_t> exchanged[2];  ///< in turn: nobody overwrites what a slower lane still reads
  std::vector<EmulatedOperands> operands[2];
  std::vector<unsigned char> shared;
  std::jmp_buf scheduler;
  std::size_t running = 0;
  const std::function<void()>* body = nullptr;
};

thread_local Block* current = nullptr;

void open_gate(Gate& gate) {
  gate.arrived = 0;
  for (std::size_t i = gate.first; i < gate.first + gate.count; ++i) {
    if (current->fibres[i].waits_at == &gate) current->fibres[i].waits_at = nullptr;
  }
}

void wait_at(Gate& gate) {
  if (++gate.arrived == gate.live) return open_gate(gate);
  Fibre& fibre = current->fibres[current->running];
  fibre.waits_at = &gate;
  if (_setjmp(fibre.place_in_code) == 0) _longjmp(current->scheduler, 1);
}

void leave(Gate& gate) {
  --gate.live;
  if (gate.arrived > 0 && gate.arrived == gate.live) open_gate(gate);
}

void run_fibre() {
  Block& block = *current;
  (*block.body)();
  block.fibres[block.running].is_done = true;
  leave(block.all);
  leave(block.warps[block.running / kWarp]);
  leave(block.matrix_groups[block.running / kMatrixGroup]);
  _longjmp(block.scheduler, 1);
}

void take_turn(Fibre& fibre) {
  if (_setjmp(current->scheduler) != 0) return;
  if (fibre.has_started) _longjmp(fibre.place_in_code, 1);
  fibre.has_started = true;
  setcontext(&fibre.entry);
}

std::vector<Gate> make_gates(std::size_t threads, std::size_t each) {
  std::vector<Gate> gates;
  for (std::size_t first = 0; first < threads; first += each) {
    const std::size_t count = threads - first < each ? threads - first : each;
    gates.push_back({first, count, count});
  }
  return gates;
}

void restart(Block& block) {
  const std::size_t threads = block.fibres.size();
  block.all = {0, threads, threads};
  block.warps = make_gates(threads, kWarp);
  block.matrix_groups = make_gates(threads, kMatrixGroup);
  for (Fibre& fibre : block.fibres) {
    fibre.waits_at = nullptr;
    fibre.has_started = fibre.is_done = false;
    fibre.exchange_count = fibre.product_count = 0;
    getcontext(&fibre.entry);
    fibre.entry.uc_stack.ss_sp = fibre.stack.get();
    fibre.entry.uc_stack.ss_size = kStackBytes;
    fibre.entry.uc_link = nullptr;
    makecontext(&fibre.entry, run_fibre, 0);
  }
}

void run_block(Block& block) {
  restart(block);
  while (block.all.live > 0) {
    bool any = false;
    for (block.running = 0; block.running < block.fibres.size(); ++block.running) {
      Fibre& fibre = block.fibres[block.running];
      if (fibre.is_done || fibre.waits_at) continue;
      take_turn(fibre);
      any = true;
    }
    if (!any) {
      std::fputs("block emulator: threads wait for each other at different barriers\n", stderr);
      __builtin_trap();
    }
  }
}

}  // namespace

EmulatedThread& emulated_thread() { return current->fibres[current->running].place; }
void emulated_barrier() { wait_at(current->all); }
void emulated_warp_barrier() { wait_at(current->warps[current->running / kWarp]); }
int emulated_lane() { return static_cast<int>(current->running % kWarp); }

std::uint64_t emulated_exchange(std::uint64_t value, int lane) {
  Block& block = *current;
  const std::size_t me = block.running, source = me / kWarp * kWarp + static_cast<std::size_t>(lane);
  std::vector<std::uint64_t>& values = block.exchanged[block.fibres[me].exchange_count++ % 2];
  values[me] = value;
  emulated_warp_barrier();
  return values[source < values.size() ? source : me];
}

const EmulatedOperands* emulated_operands(const EmulatedOperands& mine) {
  Block& block = *current;
  const std::size_t me = block.running;
  std::vector<EmulatedOperands>& operands = block.operands[block.fibres[me].product_count++ % 2];
  operands[me] = mine;
  wait_at(block.matrix_groups[me / kMatrixGroup]);
  return operands.data() + me / kMatrixGroup * kMatrixGroup;
}

unsigned char* emulated_shared() {
  const auto address = reinterpret_cast<std::uintptr_t>(current->shared.data());
  return current->shared.data() + (128 - address % 128) % 128;
}

void emulate(dim3 grid, dim3 size, std::size_t shared_bytes, const std::function<void()>& body) {
  Block block;
  block.fibres = std::vector<Fibre>(static_cast<std::size_t>(size.x) * size.y * size.z);
  for (auto& values : block.exchanged) values.resize(block.fibres.size());
  for (auto& operands : block.operands) operands.resize(block.fibres.size() + kMatrixGroup);
  block.shared.resize(shared_bytes + 128, 0xFF);
  block.body = &body;
  Block* outer = std::exchange(current, &block);
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        for (unsigned t = 0; t < block.fibres.size(); ++t) {
          block.fibres[t].place = {dim3(t % size.x, t / size.x % size.y, t / (size.x * size.y)), dim3(x, y, z), size, grid};
        }
        run_block(block);
      }
    }
  }
  current = outer;
}

}  // namespace cairn::gpu
