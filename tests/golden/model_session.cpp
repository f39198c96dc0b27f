#include "tests/golden/model_session.h"

#include <cstdio>
#include <cstdlib>

namespace cairn::test {

void require(cairn_status status, const char* what) {
  if (status == CAIRN_STATUS_OK) return;
  std::fprintf(stderr, "%s: %s: %s\n", what, cairn_status_name(status), cairn_last_error_message());
  std::exit(2);
}

ModelSession::ModelSession(const std::string& path, const std::string& backend) {
  cairn_device_options options = CAIRN_DEVICE_OPTIONS_INIT;
  options.backend = backend.c_str();
  require(cairn_device_open(&options, &device_), "device");
  cairn_model_options exact = CAIRN_MODEL_OPTIONS_INIT;
  exact.precision = CAIRN_PRECISION_F32;  // goldens are f32: a GPU's default, bf16 activations, would not meet them
  require(cairn_model_load(device_, path.c_str(), &exact, &model_), path.c_str());
  require(cairn_stream_create(model_, nullptr, &stream_), "stream");
  cairn_model_info info = CAIRN_MODEL_INFO_INIT;
  require(cairn_model_get_info(model_, &info), "model info");
  vocab_ = static_cast<std::size_t>(info.vocab_size);
}

ModelSession::~ModelSession() {
  cairn_state_release(state_);
  cairn_stream_release(stream_);
  cairn_model_release(model_);
  cairn_device_release(device_);
}

void ModelSession::create_state() {
  cairn_state_release(state_);
  cairn_state_options options = CAIRN_STATE_OPTIONS_INIT;
  options.kv_capacity_tokens = capacity_tokens_;
  require(cairn_state_create(model_, &options, &state_), "state");
}

Logits ModelSession::prefill(const Tokens& tokens, std::size_t rows) {
  capacity_tokens_ = static_cast<std::int64_t>(tokens.size()) + 256;
  create_state();
  cairn_sequence sequence = {state_, tokens.data(), static_cast<std::int64_t>(tokens.size()), CAIRN_LOGITS_ALL, 0};
  cairn_batch batch = CAIRN_BATCH_INIT;
  batch.sequences = &sequence;
  batch.sequence_count = 1;
  require(cairn_prefill(stream_, &batch), "prefill");
  return fetch(tokens.size() - rows, rows);
}

Logits ModelSession::decode(std::int32_t token) {
  require(cairn_decode(stream_, &state_, &token, 1), "decode");
  return fetch(0, 1);
}

std::vector<char> ModelSession::save() {
  std::size_t size_bytes = 0;
  cairn_state_save_to_memory(state_, nullptr, &size_bytes, nullptr);  // asks for the size
  std::vector<char> snapshot(size_bytes);
  require(cairn_state_save_to_memory(state_, snapshot.data(), &size_bytes, nullptr), "save");
  return snapshot;
}

void ModelSession::restore(const std::vector<char>& snapshot) {
  create_state();
  require(cairn_state_restore_from_memory(state_, snapshot.data(), snapshot.size(), nullptr), "restore");
}

Logits ModelSession::fetch(std::size_t first, std::size_t count) {
  Logits logits;
  for (std::size_t row = first; row < first + count; ++row) {
    const float* values = nullptr;
    std::size_t width = 0;
    require(cairn_stream_get_logits(stream_, static_cast<std::int64_t>(row), &values, &width), "logits");
    logits.insert(logits.end(), values, values + width);
  }
  return logits;
}

}  // namespace cairn::test
