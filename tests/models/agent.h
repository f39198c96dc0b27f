// The sample model through the C API, for tests: handles that release themselves, and failures as exceptions.
#pragma once

#include <cairn/cairn.h>

#include <cmath>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace cairn_test {

inline void check(cairn_status status) {
  if (status != CAIRN_STATUS_OK) {
    throw std::runtime_error(std::string(cairn_status_name(status)) + ": " + cairn_last_error_message());
  }
}

template <typename T, void (*Release)(T*)>
struct Releaser {
  void operator()(T* handle) const { Release(handle); }
};
using Device = std::unique_ptr<cairn_device, Releaser<cairn_device, cairn_device_release>>;
using Model = std::unique_ptr<cairn_model, Releaser<cairn_model, cairn_model_release>>;
using State = std::unique_ptr<cairn_state, Releaser<cairn_state, cairn_state_release>>;
using Stream = std::unique_ptr<cairn_stream, Releaser<cairn_stream, cairn_stream_release>>;

/// A model on a device with a stream.
class Agent {
 public:
  Agent(const std::string& model_path, const std::string& backend, int threads) {
    cairn_device_options options = CAIRN_DEVICE_OPTIONS_INIT;
    options.backend = backend.c_str();
    options.thread_count = threads;
    cairn_device* device = nullptr;
    check(cairn_device_open(&options, &device));
    device_.reset(device);
    cairn_model* model = nullptr;
    check(cairn_model_load(device, model_path.c_str(), nullptr, &model));
    model_.reset(model);
    check(cairn_model_get_info(model, &info_));
    cairn_stream* stream = nullptr;
    check(cairn_stream_create(model, nullptr, &stream));
    stream_.reset(stream);
  }

  cairn_model* model() const { return model_.get(); }
  cairn_stream* stream() const { return stream_.get(); }
  const cairn_model_info& info() const { return info_; }

  State new_state(int64_t rewind_window_tokens = 0) const {
    cairn_state_options options = CAIRN_STATE_OPTIONS_INIT;
    options.rewind_window_tokens = rewind_window_tokens;
    cairn_state* state = nullptr;
    check(cairn_state_create(model(), &options, &state));
    return State(state);
  }

  static State fork(cairn_state* state) {
    cairn_state* fork = nullptr;
    check(cairn_state_fork(state, &fork));
    return State(fork);
  }

  /// BOS, then the text.
  std::vector<int32_t> tokens_of(std::string_view text) const {
    size_t count = text.size();
    std::vector<int32_t> tokens(count + 1, info_.bos_token);
    check(cairn_model_tokenize(model(), text.data(), text.size(), tokens.data() + 1, &count));
    tokens.resize(count + 1);
    return tokens;
  }

  void read(cairn_state* state, std::span<const int32_t> tokens, cairn_logits logits = CAIRN_LOGITS_LAST,
            const cairn_sparse_options* sparse = nullptr) const {
    const cairn_sequence sequence = {state, tokens.data(), static_cast<int64_t>(tokens.size()), logits, 0};
    read_batch({&sequence, 1}, sparse);
  }

  void read_batch(std::span<const cairn_sequence> sequences, const cairn_sparse_options* sparse = nullptr) const {
    cairn_batch batch = CAIRN_BATCH_INIT;
    batch.sequences = sequences.data();
    batch.sequence_count = static_cast<int32_t>(sequences.size());
    batch.mode = sparse != nullptr ? CAIRN_PREFILL_SPARSE : CAIRN_PREFILL_DENSE;
    batch.sparse = sparse;
    check(cairn_prefill(stream(), &batch));
    check(cairn_stream_synchronize(stream()));
  }

  void decode(cairn_state* state, int32_t token) const { check(cairn_decode(stream(), &state, &token, 1)); }

  std::span<const float> logits(int64_t row) const {
    const float* data = nullptr;
    size_t count = 0;
    check(cairn_stream_get_logits(stream(), row, &data, &count));
    return {data, count};
  }

 private:
  Device device_;
  Model model_;
  cairn_model_info info_ = CAIRN_MODEL_INFO_INIT;
  Stream stream_;
};

inline cairn_state_info info_of(cairn_state* state) {
  cairn_state_info info = CAIRN_STATE_INFO_INIT;
  check(cairn_state_get_info(state, &info));
  return info;
}

inline int32_t greedy(std::span<const float> logits) {
  int32_t token = 0;
  check(cairn_sample(logits.data(), logits.size(), nullptr, &token));
  return token;
}

inline std::vector<float> last_logits(const Agent& agent, cairn_state* state) {
  std::vector<float> logits(static_cast<size_t>(agent.info().vocab_size));
  size_t count = logits.size();
  check(cairn_state_get_last_logits(state, logits.data(), &count));
  return logits;
}

inline std::vector<unsigned char> snapshot_of(cairn_state* state) {
  size_t size = 0;
  const cairn_status status = cairn_state_save_to_memory(state, nullptr, &size, nullptr);
  if (status != CAIRN_STATUS_BUFFER_TOO_SMALL) check(status);
  std::vector<unsigned char> bytes(size);
  check(cairn_state_save_to_memory(state, bytes.data(), &size, nullptr));
  return bytes;
}

/// -log p(token), from logits.
inline double surprise(std::span<const float> logits, int32_t token) {
  double largest = logits[0], sum = 0;
  for (const float value : logits) largest = std::max(largest, static_cast<double>(value));
  for (const float value : logits) sum += std::exp(static_cast<double>(value) - largest);
  return std::log(sum) + largest - static_cast<double>(logits[static_cast<size_t>(token)]);
}

}  // namespace cairn_test
