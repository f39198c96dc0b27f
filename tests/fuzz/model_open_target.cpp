// F1: bytes as a model file. Accepted files are walked from end to end.
#include <cstdlib>
#include <vector>

#include "runtime/model/cairn_file_reader.h"
#include "runtime/support/allocator.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/fuzz/sealed_file.h"

namespace cairn::test {

void fuzz_model_open(const std::uint8_t* data, std::size_t size) {
  const AllocatorCounters before = allocator_counters();
  {
    const Result<ModelDescription> model = read_cairn_memory(data, size, {.check_finite = true});
    if (model.ok()) {
      if (!validate(model.value()).ok() || !check_tensors(model.value()).ok()) std::abort();
      std::uint64_t sum = 0;
      for (const TensorEntry& tensor : model.value().tensors) {
        const auto* bytes = static_cast<const std::uint8_t*>(tensor.data);
        for (std::uint64_t i = 0; i < tensor.size_bytes; ++i) sum += bytes[i];
        for (std::uint64_t i = 0; i < tensor.scales_bytes / 4; ++i) sum += tensor.scales[i] > 0;
      }
      volatile std::uint64_t keep = sum;
      (void)keep;
    } else if (model.status().message().empty() || model.status().code() == CAIRN_STATUS_INTERNAL) {
      std::abort();
    }
  }
  if (allocator_counters().live_bytes != before.live_bytes) std::abort();
}

}  // namespace cairn::test

CAIRN_FUZZ_ENTRY(fuzz_model_open)

#ifdef CAIRN_LIBFUZZER
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

/// Checksums are mended after each mutation: damage alone is found too easily.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed) {
  const std::size_t mutated = LLVMFuzzerMutate(data, size, max_size);
  if (seed % 8 == 0) return mutated;
  cairn::test::Bytes file(data, data + mutated);
  if (file.size() >= 128) cairn::test::store_number(file, 48, 8, file.size());
  cairn::test::reseal(file);
  std::copy(file.begin(), file.end(), data);
  return mutated;
}
#endif
