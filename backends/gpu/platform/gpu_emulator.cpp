#include "backends/gpu/platform/gpu_emulator.h"

#include <ucontext.h>

#include <memory>
#include <vector>

#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

namespace cairn::gpu {
namespace {

constexpr std::size_t kStackBytes = 64 * 1024;

struct Fibre {
  ucontext_t context;
  std::unique_ptr<unsigned char[]> stack{new unsigned char[kStackBytes]};
  EmulatedThread place;
  bool is_done = false;
};

/// A block: its fibres take turns; a turn ends at a barrier, at a shuffle, or at the end.
struct Block {
  std::vector<Fibre> fibres;
  std::vector<std::uint64_t> exchanged;
  std::vector<unsigned char> shared;
  ucontext_t scheduler;
  std::size_t running = 0;
  const std::function<void()>* body = nullptr;
};

thread_local Block* current = nullptr;

void enter_fibre() {
  Block& block = *current;
  (*block.body)();
  block.fibres[block.running].is_done = true;
  swapcontext(&block.fibres[block.running].context, &block.scheduler);
}

void end_turn() {
  Block& block = *current;
  swapcontext(&block.fibres[block.running].context, &block.scheduler);
}

void start(Fibre& fibre, ucontext_t* scheduler) {
  fibre.is_done = false;
  getcontext(&fibre.context);
  fibre.context.uc_stack.ss_sp = fibre.stack.get();
  fibre.context.uc_stack.ss_size = kStackBytes;
  fibre.context.uc_link = scheduler;
  makecontext(&fibre.context, enter_fibre, 0);
}

void run_block(Block& block) {
  for (Fibre& fibre : block.fibres) start(fibre, &block.scheduler);
  for (bool any = true; any;) {
    any = false;
    for (block.running = 0; block.running < block.fibres.size(); ++block.running) {
      Fibre& fibre = block.fibres[block.running];
      if (fibre.is_done) continue;
      swapcontext(&block.scheduler, &fibre.context);
      any |= !fibre.is_done;
    }
  }
}

}  // namespace

EmulatedThread& emulated_thread() { return current->fibres[current->running].place; }
void emulated_barrier() { end_turn(); }
int emulated_lane() { return static_cast<int>(current->running % CAIRN_EMULATED_WARP); }

std::uint64_t emulated_exchange(std::uint64_t value, int lane) {
  Block& block = *current;
  const std::size_t me = block.running;
  const std::size_t source = me / CAIRN_EMULATED_WARP * CAIRN_EMULATED_WARP + static_cast<std::size_t>(lane);
  block.exchanged[me] = value;
  end_turn();
  const std::uint64_t result = block.exchanged[source < block.exchanged.size() ? source : me];
  end_turn();
  return result;
}

unsigned char* emulated_shared() {
  const auto address = reinterpret_cast<std::uintptr_t>(current->shared.data());
  return current->shared.data() + (16 - address % 16) % 16;
}

void emulate(dim3 grid, dim3 size, std::size_t shared_bytes, const std::function<void()>& body) {
  Block block;
  block.fibres = std::vector<Fibre>(static_cast<std::size_t>(size.x) * size.y * size.z);
  block.exchanged.resize(block.fibres.size());
  block.shared.resize(shared_bytes + 16, 0xFF);
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
