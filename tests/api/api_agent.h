// What the tests of the C API work with: an agent on the sample model, and its snapshot.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdio>
#include <vector>

#include "cairn/cairn.h"

#define REQUIRE_OK(call) REQUIRE_MESSAGE((call) == CAIRN_STATUS_OK, cairn_last_error_message())

namespace cairn_test {

/// A device, the sample model, a stream and a state; `has_model` is false where the sample is not there.
struct Agent {
  cairn_device* device = nullptr;
  cairn_model* model = nullptr;
  cairn_stream* stream = nullptr;
  cairn_state* state = nullptr;
  bool has_model = false;

  Agent() {
    cairn_device_options options = CAIRN_DEVICE_OPTIONS_INIT;
    options.backend = "cpu";
    options.thread_count = 1;
    REQUIRE_OK(cairn_device_open(&options, &device));
    if (std::FILE* file = std::fopen(CAIRN_MODEL_PATH, "rb")) {
      std::fclose(file);
      REQUIRE_OK(cairn_model_load(device, CAIRN_MODEL_PATH, nullptr, &model));
      REQUIRE_OK(cairn_stream_create(model, nullptr, &stream));
      REQUIRE_OK(cairn_state_create(model, nullptr, &state));
      has_model = true;
    } else {
      MESSAGE("skipped: no " CAIRN_MODEL_PATH);
    }
  }
  ~Agent() {
    cairn_device_release(device);
    cairn_model_release(model);
    cairn_stream_release(stream);
    cairn_state_release(state);
  }
  Agent(const Agent&) = delete;

  cairn_status prefill(int64_t count, cairn_progress_fn progress = nullptr, void* user = nullptr) const {
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 7 % 200);
    const cairn_sequence sequence = {state, tokens.data(), count, CAIRN_LOGITS_LAST, 0};
    cairn_batch batch = CAIRN_BATCH_INIT;
    batch.sequences = &sequence;
    batch.sequence_count = 1;
    batch.progress = progress;
    batch.progress_user = user;
    return cairn_prefill(stream, &batch);
  }
};

inline int64_t position_of(cairn_state* state) {
  cairn_state_info info = CAIRN_STATE_INFO_INIT;
  REQUIRE_OK(cairn_state_get_info(state, &info));
  return info.position;
}

inline std::vector<char> save(cairn_state* state) {
  size_t size = 0;
  REQUIRE(cairn_state_save_to_memory(state, nullptr, &size, nullptr) == CAIRN_STATUS_BUFFER_TOO_SMALL);
  std::vector<char> bytes(size);
  REQUIRE_OK(cairn_state_save_to_memory(state, bytes.data(), &size, nullptr));
  REQUIRE(size == bytes.size());
  return bytes;
}

}  // namespace cairn_test
