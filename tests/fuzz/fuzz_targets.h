// What the fuzzers run: each takes any bytes and must return. The ctest program runs them on mutations of good files; with
// -DCAIRN_FUZZERS=ON (clang) each is also a libFuzzer program. A target aborts when a promise is broken.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cairn::test {

void fuzz_model_open(const std::uint8_t* data, std::size_t size);        ///< model_open_target.cpp
void fuzz_snapshot_inspect(const std::uint8_t* data, std::size_t size);  ///< snapshot_inspect_target.cpp
void fuzz_safetensors(const std::uint8_t* data, std::size_t size);       ///< safetensors_target.cpp
void fuzz_native_config(const std::uint8_t* data, std::size_t size);     ///< native_config_target.cpp
void fuzz_text(const std::uint8_t* data, std::size_t size);              ///< text_target.cpp

/// The bytes with one to a few changes; lengths stay. Seeded: the same seed gives the same changes.
void mutate(std::uint8_t* data, std::size_t size, std::uint64_t seed);

}  // namespace cairn::test

#ifdef CAIRN_LIBFUZZER
#define CAIRN_FUZZ_ENTRY(target)                                                    \
  extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) { \
    cairn::test::target(data, size);                                                \
    return 0;                                                                       \
  }
#else
#define CAIRN_FUZZ_ENTRY(target)
#endif
