// The C API as flat functions that SWIG can carry: handles are 64-bit numbers (the library checks them on every call, so a
// stale one is an error and never a crash), failures are exceptions, arrays are pointer and length.
// Each language has an idiomatic layer on top; nothing here is meant to be called by hand.
#pragma once

#include <cairn/cairn.h>

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

namespace cairn_raw {

struct Failure {
  int code;
  std::string text;
};

inline void check(cairn_status status) {
  if (status == CAIRN_STATUS_OK) return;
  const char* text = cairn_last_error_message();
  throw Failure{status, text[0] != '\0' ? text : cairn_status_name(status)};
}

/// As check, for calls that ask how much room they need.
inline void check_size(cairn_status status) {
  if (status != CAIRN_STATUS_BUFFER_TOO_SMALL) check(status);
}

inline const char* noun(const cairn_device*) { return "device"; }
inline const char* noun(const cairn_model*) { return "model"; }
inline const char* noun(const cairn_state*) { return "state"; }
inline const char* noun(const cairn_stream*) { return "stream"; }
inline const char* noun(const cairn_text_decoder*) { return "text decoder"; }

/// 0 is what the languages hand over after closing.
template <typename T>
T* handle(int64_t value) {
  const char* const name = noun(static_cast<T*>(nullptr));
  if (value == 0) throw Failure{CAIRN_STATUS_INVALID_HANDLE, std::string("the ") + name + " was closed"};
  return reinterpret_cast<T*>(static_cast<intptr_t>(value));
}
inline int64_t number(const void* handle) { return static_cast<int64_t>(reinterpret_cast<intptr_t>(handle)); }

}  // namespace cairn_raw

/// Memory of the library, lent until the next call on its owner.
struct LentFloats {
  const float* data;
  size_t count;
};
struct LentBytes {
  const char* data;
  size_t count;
};

/// A listener that a language subclasses: returns false to cancel, and may throw.
class Progress {
 public:
  virtual ~Progress() = default;
  virtual bool report(int64_t done, int64_t total) {
    (void)done, (void)total;
    return true;
  }
};

namespace cairn_raw {

/// Carries an exception around the C frames of the library: the call is cancelled, then the exception goes on.
class ProgressBridge {
 public:
  explicit ProgressBridge(Progress* listener) : listener_(listener) {}
  cairn_progress_fn function() const { return listener_ != nullptr ? &ProgressBridge::call : nullptr; }
  void finish(cairn_status status) const {
    if (caught_) std::rethrow_exception(caught_);
    check(status);
  }

 private:
  static int call(void* user, uint64_t done, uint64_t total) {
    auto* bridge = static_cast<ProgressBridge*>(user);
    try {
      return bridge->listener_->report(static_cast<int64_t>(done), static_cast<int64_t>(total)) ? 0 : 1;
    } catch (...) {
      bridge->caught_ = std::current_exception();
      return 1;
    }
  }

  Progress* listener_;
  std::exception_ptr caught_;
};

inline cairn_state_info state_info(int64_t state) {
  cairn_state_info info = CAIRN_STATE_INFO_INIT;
  check(cairn_state_get_info(handle<cairn_state>(state), &info));
  return info;
}

inline cairn_limits snapshot_limits(int64_t max_bytes) {
  if (max_bytes < 0) throw Failure{CAIRN_STATUS_INVALID_ARGUMENT, "max_bytes is negative"};
  cairn_limits limits = CAIRN_LIMITS_INIT;
  limits.max_snapshot_bytes = static_cast<uint64_t>(max_bytes);
  return limits;
}

inline cairn_model_info model_info(int64_t model) {
  cairn_model_info info = CAIRN_MODEL_INFO_INIT;
  check(cairn_model_get_info(handle<cairn_model>(model), &info));
  return info;
}

}  // namespace cairn_raw

/// All functions. Names begin with their noun. Arrays of handles are `long long`, as SWIG understands int64_t.
struct Raw {
  // --- library
  static std::string versionString() { return cairn_version_string(); }
  static std::string statusName(int code) { return cairn_status_name(code); }

  // --- device
  static int64_t deviceOpen(const char* backend, int index, int threads) {
    cairn_device_options options = CAIRN_DEVICE_OPTIONS_INIT;
    options.backend = backend;
    options.index = index;
    options.thread_count = threads;
    cairn_device* device = nullptr;
    cairn_raw::check(cairn_device_open(&options, &device));
    return cairn_raw::number(device);
  }
  static std::string deviceBackend(int64_t device) { return device_info(device).backend; }
  static std::string deviceName(int64_t device) { return device_info(device).name; }
  static void deviceRelease(int64_t device) { cairn_device_release(cairn_raw::handle<cairn_device>(device)); }

  // --- model
  static int64_t modelLoad(int64_t device, const char* path, Progress* progress) {
    cairn_raw::ProgressBridge bridge(progress);
    cairn_model_options options = CAIRN_MODEL_OPTIONS_INIT;
    options.progress = bridge.function();
    options.progress_user = &bridge;
    cairn_model* model = nullptr;
    bridge.finish(cairn_model_load(cairn_raw::handle<cairn_device>(device), path, &options, &model));
    return cairn_raw::number(model);
  }
  static std::string modelName(int64_t model) { return cairn_raw::model_info(model).name; }
  static int modelVocabSize(int64_t model) { return cairn_raw::model_info(model).vocab_size; }
  static int modelLayerCount(int64_t model) { return cairn_raw::model_info(model).layer_count; }
  /// The token that a new state reads first, or -1.
  static int modelFirstToken(int64_t model) {
    const cairn_model_info info = cairn_raw::model_info(model);
    return info.add_bos != 0 ? info.bos_token : -1;
  }
  static int64_t modelFreshStateBytes(int64_t model) {
    return static_cast<int64_t>(cairn_raw::model_info(model).fresh_state_bytes);
  }
  static int64_t modelTokenCount(int64_t model, const void* data, size_t size_bytes) {
    size_t count = 0;
    cairn_raw::check_size(cairn_model_tokenize(cairn_raw::handle<cairn_model>(model), static_cast<const char*>(data),
                                               size_bytes, nullptr, &count));
    return static_cast<int64_t>(count);
  }
  static void modelTokenize(int64_t model, const void* data, size_t size_bytes, int32_t* out_tokens, size_t room) {
    cairn_raw::check(cairn_model_tokenize(cairn_raw::handle<cairn_model>(model), static_cast<const char*>(data),
                                          size_bytes, out_tokens, &room));
  }
  static int64_t modelChatTemplateBytes(int64_t model) {
    size_t size_bytes = 0;
    cairn_raw::check_size(cairn_model_get_chat_template(cairn_raw::handle<cairn_model>(model), nullptr, &size_bytes));
    return static_cast<int64_t>(size_bytes);
  }
  static void modelChatTemplate(int64_t model, void* room, size_t room_bytes) {
    cairn_raw::check(cairn_model_get_chat_template(cairn_raw::handle<cairn_model>(model), static_cast<char*>(room),
                                                   &room_bytes));
  }
  static bool modelIsStop(int64_t model, int token) {
    int32_t stop = 0;
    cairn_raw::check(cairn_model_is_stop_token(cairn_raw::handle<cairn_model>(model), token, &stop));
    return stop != 0;
  }
  static void modelRelease(int64_t model) { cairn_model_release(cairn_raw::handle<cairn_model>(model)); }

  // --- state
  static int64_t stateCreate(int64_t model, int64_t kv_capacity_tokens, int64_t rewind_window_tokens) {
    cairn_state_options options = CAIRN_STATE_OPTIONS_INIT;
    options.kv_capacity_tokens = kv_capacity_tokens;
    options.rewind_window_tokens = rewind_window_tokens;
    cairn_state* state = nullptr;
    cairn_raw::check(cairn_state_create(cairn_raw::handle<cairn_model>(model), &options, &state));
    return cairn_raw::number(state);
  }
  static int64_t stateFork(int64_t state) {
    cairn_state* fork = nullptr;
    cairn_raw::check(cairn_state_fork(cairn_raw::handle<cairn_state>(state), &fork));
    return cairn_raw::number(fork);
  }
  static void stateReset(int64_t state) { cairn_raw::check(cairn_state_reset(cairn_raw::handle<cairn_state>(state))); }
  static void stateRewind(int64_t state, int64_t position) {
    cairn_raw::check(cairn_state_rewind(cairn_raw::handle<cairn_state>(state), position));
  }
  static bool stateCanRewind(int64_t state, int64_t position) {
    int32_t can = 0;
    cairn_raw::check(cairn_state_can_rewind(cairn_raw::handle<cairn_state>(state), position, &can));
    return can != 0;
  }
  static int64_t statePosition(int64_t state) { return cairn_raw::state_info(state).position; }
  static int64_t stateOldestRewindPosition(int64_t state) { return cairn_raw::state_info(state).oldest_rewind_position; }
  static int64_t stateBytesHeld(int64_t state) { return static_cast<int64_t>(cairn_raw::state_info(state).bytes_held); }
  static int64_t stateBytesShared(int64_t state) {
    return static_cast<int64_t>(cairn_raw::state_info(state).bytes_shared);
  }
  static void stateSave(int64_t state, const char* path, Progress* progress) {
    cairn_raw::ProgressBridge bridge(progress);
    cairn_snapshot_options options = CAIRN_SNAPSHOT_OPTIONS_INIT;
    options.progress = bridge.function();
    options.progress_user = &bridge;
    bridge.finish(cairn_state_save(cairn_raw::handle<cairn_state>(state), path, &options));
  }
  /// max_bytes: of the snapshot; 0: no limit.
  static void stateRestore(int64_t state, const char* path, int64_t max_bytes, Progress* progress) {
    cairn_raw::ProgressBridge bridge(progress);
    cairn_limits limits = cairn_raw::snapshot_limits(max_bytes);
    cairn_restore_options options = CAIRN_RESTORE_OPTIONS_INIT;
    options.limits = &limits;
    options.progress = bridge.function();
    options.progress_user = &bridge;
    bridge.finish(cairn_state_restore(cairn_raw::handle<cairn_state>(state), path, &options));
  }
  static int64_t stateSnapshotBytes(int64_t state) {
    size_t size_bytes = 0;
    cairn_raw::check_size(
        cairn_state_save_to_memory(cairn_raw::handle<cairn_state>(state), nullptr, &size_bytes, nullptr));
    return static_cast<int64_t>(size_bytes);
  }
  /// Bytes written.
  static int64_t stateSaveTo(int64_t state, void* room, size_t room_bytes) {
    cairn_raw::check(cairn_state_save_to_memory(cairn_raw::handle<cairn_state>(state), room, &room_bytes, nullptr));
    return static_cast<int64_t>(room_bytes);
  }
  static void stateRestoreFrom(int64_t state, const void* data, size_t size_bytes, int64_t max_bytes) {
    cairn_limits limits = cairn_raw::snapshot_limits(max_bytes);
    cairn_restore_options options = CAIRN_RESTORE_OPTIONS_INIT;
    options.limits = &limits;
    cairn_raw::check(
        cairn_state_restore_from_memory(cairn_raw::handle<cairn_state>(state), data, size_bytes, &options));
  }
  static void stateLastLogits(int64_t state, float* out_floats, size_t room) {
    cairn_raw::check(cairn_state_get_last_logits(cairn_raw::handle<cairn_state>(state), out_floats, &room));
  }
  /// A token chosen from the logits after the last one read, also after a restore.
  static int stateSample(int64_t state, float temperature, int top_k, float top_p, float min_p,
                         float repetition_penalty, int64_t seed, int64_t draw, const int32_t* tokens,
                         size_t token_count) {
    size_t count = 0;
    cairn_raw::check_size(cairn_state_get_last_logits(cairn_raw::handle<cairn_state>(state), nullptr, &count));
    std::vector<float> logits(count);
    cairn_raw::check(cairn_state_get_last_logits(cairn_raw::handle<cairn_state>(state), logits.data(), &count));
    return choose({logits.data(), count},
                  {sizeof(cairn_sampler_options), temperature, top_k, top_p, min_p, repetition_penalty, 0,
                   static_cast<uint64_t>(seed), static_cast<uint64_t>(draw), tokens, token_count});
  }
  static void stateRelease(int64_t state) { cairn_state_release(cairn_raw::handle<cairn_state>(state)); }

  // --- stream
  static int64_t streamCreate(int64_t model, int max_sequences) {
    cairn_stream_options options = CAIRN_STREAM_OPTIONS_INIT;
    options.max_sequences = max_sequences;
    cairn_stream* stream = nullptr;
    cairn_raw::check(cairn_stream_create(cairn_raw::handle<cairn_model>(model), &options, &stream));
    return cairn_raw::number(stream);
  }
  /// `lengths[i]` of the concatenated tokens go to `states[i]`. sparse_policy -1: dense.
  static void streamPrefill(int64_t stream, const long long* states, size_t state_count, const int32_t* tokens,
                            size_t token_count, const long long* lengths, size_t length_count, int logits,
                            int sparse_policy, int64_t seed, Progress* progress) {
    if (state_count != length_count) {
      throw cairn_raw::Failure{CAIRN_STATUS_INVALID_ARGUMENT, std::to_string(length_count) + " arrays of tokens for " +
                                                                  std::to_string(state_count) + " states"};
    }
    std::vector<cairn_sequence> sequences;
    size_t begin = 0;
    for (size_t i = 0; i < state_count; ++i) {
      const int64_t length = lengths[i];
      if (length < 0 || static_cast<uint64_t>(length) > token_count - begin) {
        throw cairn_raw::Failure{CAIRN_STATUS_INVALID_ARGUMENT, "lengths and tokens do not fit"};
      }
      sequences.push_back({cairn_raw::handle<cairn_state>(states[i]), tokens + begin, length, logits, 0});
      begin += static_cast<size_t>(length);
    }
    if (begin != token_count) throw cairn_raw::Failure{CAIRN_STATUS_INVALID_ARGUMENT, "lengths and tokens do not fit"};
    cairn_raw::ProgressBridge bridge(progress);
    cairn_sparse_options sparse = CAIRN_SPARSE_OPTIONS_INIT;
    sparse.policy = sparse_policy < 0 ? 0 : sparse_policy;
    sparse.seed = static_cast<uint64_t>(seed);
    cairn_batch batch = CAIRN_BATCH_INIT;
    batch.sequences = sequences.data();
    batch.sequence_count = static_cast<int32_t>(sequences.size());
    batch.mode = sparse_policy < 0 ? CAIRN_PREFILL_DENSE : CAIRN_PREFILL_SPARSE;
    batch.sparse = &sparse;
    batch.progress = bridge.function();
    batch.progress_user = &bridge;
    bridge.finish(cairn_prefill(cairn_raw::handle<cairn_stream>(stream), &batch));
    cairn_raw::check(cairn_stream_synchronize(cairn_raw::handle<cairn_stream>(stream)));
  }
  static void streamDecode(int64_t stream, const long long* states, size_t state_count, const int32_t* tokens,
                           size_t token_count) {
    if (state_count != token_count) {
      throw cairn_raw::Failure{CAIRN_STATUS_INVALID_ARGUMENT, "one token for each state is needed"};
    }
    std::vector<cairn_state*> handles;
    for (size_t i = 0; i < state_count; ++i) handles.push_back(cairn_raw::handle<cairn_state>(states[i]));
    cairn_raw::check(cairn_decode(cairn_raw::handle<cairn_stream>(stream), handles.data(), tokens,
                                  static_cast<int32_t>(state_count)));
  }
  static LentFloats streamLogits(int64_t stream, int64_t row) {
    LentFloats lent = {nullptr, 0};
    cairn_raw::check(
        cairn_stream_get_logits(cairn_raw::handle<cairn_stream>(stream), row, &lent.data, &lent.count));
    return lent;
  }
  /// A token chosen from a row of the logits, which stay where they are.
  static int streamSample(int64_t stream, int64_t row, float temperature, int top_k, float top_p, float min_p,
                          float repetition_penalty, int64_t seed, int64_t draw, const int32_t* tokens,
                          size_t token_count) {
    return choose(streamLogits(stream, row),
                  {sizeof(cairn_sampler_options), temperature, top_k, top_p, min_p, repetition_penalty, 0,
                   static_cast<uint64_t>(seed), static_cast<uint64_t>(draw), tokens, token_count});
  }
  static void streamRelease(int64_t stream) { cairn_stream_release(cairn_raw::handle<cairn_stream>(stream)); }

  // --- text
  static int64_t decoderCreate(int64_t model) {
    cairn_text_decoder* decoder = nullptr;
    cairn_raw::check(cairn_text_decoder_create(cairn_raw::handle<cairn_model>(model), &decoder));
    return cairn_raw::number(decoder);
  }
  static LentBytes decoderPush(int64_t decoder, int token) {
    LentBytes lent = {nullptr, 0};
    cairn_raw::check(cairn_text_decoder_push(cairn_raw::handle<cairn_text_decoder>(decoder), token, &lent.data,
                                             &lent.count));
    return lent;
  }
  static LentBytes decoderFinish(int64_t decoder) {
    LentBytes lent = {nullptr, 0};
    cairn_raw::check(
        cairn_text_decoder_finish(cairn_raw::handle<cairn_text_decoder>(decoder), &lent.data, &lent.count));
    return lent;
  }
  static void decoderRelease(int64_t decoder) {
    cairn_text_decoder_release(cairn_raw::handle<cairn_text_decoder>(decoder));
  }

 private:
  static cairn_device_info device_info(int64_t device) {
    cairn_device_info info = CAIRN_DEVICE_INFO_INIT;
    cairn_raw::check(cairn_device_get_info(cairn_raw::handle<cairn_device>(device), &info));
    return info;
  }
  static int choose(LentFloats logits, const cairn_sampler_options& options) {
    int32_t token = 0;
    cairn_raw::check(cairn_sample(logits.data, logits.count, &options, &token));
    return token;
  }
};
