// The promises of the C API on a real model: lifetimes in any order, one user at a time, callbacks, struct growth.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <fenv.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "api_agent.h"

using namespace cairn_test;

TEST_CASE("handles are given back in any order, and children keep what they need") {
  Agent agent;
  if (!agent.has_model) return;
  cairn_device_release(agent.device);
  cairn_model_release(agent.model);

  CHECK(agent.prefill(70) == CAIRN_STATUS_OK);
  cairn_stream_release(agent.stream);
  CHECK(position_of(agent.state) == 70);
  cairn_state* fork = nullptr;
  REQUIRE_OK(cairn_state_fork(agent.state, &fork));
  cairn_state_release(agent.state);
  CHECK(position_of(fork) == 70);
  cairn_state_release(fork);
  cairn_state_release(fork);

  CHECK(cairn_state_reset(agent.state) == CAIRN_STATUS_INVALID_HANDLE);
  CHECK(cairn_stream_synchronize(agent.stream) == CAIRN_STATUS_INVALID_HANDLE);
  cairn_model_info info = CAIRN_MODEL_INFO_INIT;
  CHECK(cairn_model_get_info(agent.model, &info) == CAIRN_STATUS_INVALID_HANDLE);
  CHECK(cairn_model_get_info(reinterpret_cast<cairn_model*>(fork), &info) == CAIRN_STATUS_INVALID_HANDLE);
}

TEST_CASE("a progress callback that uses the same state or stream finds them busy, and another state works") {
  Agent agent;
  if (!agent.has_model) return;
  cairn_state* other = nullptr;
  REQUIRE_OK(cairn_state_create(agent.model, nullptr, &other));
  struct Seen {
    Agent* agent;
    cairn_state* other;
    int calls = 0;
    cairn_status same_state = 0, same_stream = 0, other_state = -1;
  } seen{&agent, other};
  const cairn_progress_fn progress = [](void* user, uint64_t, uint64_t) {
    auto& s = *static_cast<Seen*>(user);
    ++s.calls;
    s.same_state = cairn_state_reset(s.agent->state);
    s.same_stream = cairn_stream_synchronize(s.agent->stream);
    s.other_state = cairn_state_reset(s.other);
    return 0;
  };

  CHECK(agent.prefill(600, progress, &seen) == CAIRN_STATUS_OK);

  CHECK(seen.calls > 0);
  CHECK(seen.same_state == CAIRN_STATUS_BUSY);
  CHECK(seen.same_stream == CAIRN_STATUS_BUSY);
  CHECK(seen.other_state == CAIRN_STATUS_OK);
  CHECK(position_of(agent.state) == 600);
  cairn_snapshot_options options = CAIRN_SNAPSHOT_OPTIONS_INIT;
  options.progress = progress;
  options.progress_user = &seen;
  std::vector<char> bytes = save(agent.state);
  size_t size = bytes.size();
  seen.same_state = 0;
  CHECK(cairn_state_save_to_memory(agent.state, bytes.data(), &size, &options) == CAIRN_STATUS_OK);
  CHECK(seen.same_state == CAIRN_STATUS_BUSY);
  cairn_restore_options restore = CAIRN_RESTORE_OPTIONS_INIT;
  restore.progress = progress;
  restore.progress_user = &seen;
  seen.same_state = 0;
  CHECK(cairn_state_restore_from_memory(agent.state, bytes.data(), size, &restore) == CAIRN_STATUS_OK);
  CHECK(seen.same_state == CAIRN_STATUS_BUSY);
  cairn_state_release(other);
}

TEST_CASE("a state released by another thread while it reads is finished with first") {
  Agent agent;
  if (!agent.has_model) return;
  std::atomic<bool> has_begun{false};
  cairn_status status = -1;
  std::thread reader([&] {
    status = agent.prefill(
        1500,
        [](void* user, uint64_t, uint64_t) {
          *static_cast<std::atomic<bool>*>(user) = true;
          return 0;
        },
        &has_begun);
  });
  while (!has_begun) std::this_thread::yield();
  cairn_state_release(agent.state);
  cairn_stream_release(agent.stream);
  cairn_model_release(agent.model);
  cairn_device_release(agent.device);
  reader.join();

  CHECK(status == CAIRN_STATUS_OK);
  CHECK(cairn_state_reset(agent.state) == CAIRN_STATUS_INVALID_HANDLE);
}

TEST_CASE("threads that call on the same states work or find them busy") {
  Agent agent;
  if (!agent.has_model) return;
  REQUIRE_OK(agent.prefill(64));
  std::vector<cairn_state*> states(3);
  for (cairn_state*& state : states) REQUIRE_OK(cairn_state_fork(agent.state, &state));
  std::atomic<int> other_codes{0}, worked{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (unsigned i = 0; i < 60; ++i) {
        cairn_state* state = states[(t + i) % states.size()];
        cairn_state_info info = CAIRN_STATE_INFO_INIT;
        cairn_state* fork = nullptr;
        cairn_status status = CAIRN_STATUS_OK;
        switch ((t * 7 + i) % 4) {
          case 0: status = cairn_state_get_info(state, &info); break;
          case 1: status = cairn_state_fork(state, &fork); break;
          case 2: status = cairn_state_reset(state); break;
          default: {
            size_t size = 0;
            status = cairn_state_save_to_memory(state, nullptr, &size, nullptr);
            if (status == CAIRN_STATUS_BUFFER_TOO_SMALL) status = CAIRN_STATUS_OK;
          }
        }
        cairn_state_release(fork);
        worked += status == CAIRN_STATUS_OK;
        other_codes += status != CAIRN_STATUS_OK && status != CAIRN_STATUS_BUSY;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(other_codes == 0);
  CHECK(worked > 0);
  for (cairn_state* state : states) cairn_state_release(state);
}

TEST_CASE("rewinding by the API reaches what it tells, and refuses the rest unchanged") {
  Agent agent;
  if (!agent.has_model) return;
  cairn_state_options options = CAIRN_STATE_OPTIONS_INIT;
  options.rewind_window_tokens = 256;
  cairn_state* plain = agent.state;
  REQUIRE_OK(cairn_state_create(agent.model, &options, &agent.state));
  REQUIRE_OK(agent.prefill(400));
  const std::vector<char> before = save(agent.state);
  cairn_state_info info = CAIRN_STATE_INFO_INIT;
  REQUIRE_OK(cairn_state_get_info(agent.state, &info));
  CHECK(info.oldest_rewind_position <= 144);
  CHECK(info.rewind_bytes > 0);
  int32_t can = -1;
  for (const int64_t position : {int64_t{-1}, int64_t{401}, INT64_MAX, INT64_MIN}) {
    REQUIRE_OK(cairn_state_can_rewind(agent.state, position, &can));
    CHECK(can == 0);
    CHECK(cairn_state_rewind(agent.state, position) == CAIRN_STATUS_INVALID_ARGUMENT);
    CHECK(save(agent.state) == before);
  }

  REQUIRE_OK(cairn_state_rewind(agent.state, 150));

  std::swap(plain, agent.state);
  REQUIRE_OK(agent.prefill(150));
  CHECK(save(plain) == save(agent.state));
  cairn_state_release(plain);
}

TEST_CASE("how the host computes changes no bit and stays as it was; its traps do not go off") {
  const Agent plain, odd;
  if (!plain.has_model) return;
  std::vector<float> expected(264), actual(264);
  size_t count = expected.size();
  REQUIRE_OK(plain.prefill(200));
  REQUIRE_OK(cairn_state_get_last_logits(plain.state, expected.data(), &count));

  fesetround(FE_UPWARD);
  feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW | FE_UNDERFLOW);
  const cairn_status status = odd.prefill(200);
  const int rounding = fegetround(), traps = fegetexcept();
  fedisableexcept(FE_ALL_EXCEPT);
  fesetround(FE_TONEAREST);

  CHECK(status == CAIRN_STATUS_OK);
  CHECK(rounding == FE_UPWARD);
  CHECK(traps == (FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW | FE_UNDERFLOW));
  REQUIRE_OK(cairn_state_get_last_logits(odd.state, actual.data(), &count));
  CHECK(actual == expected);
}

TEST_CASE("sizes too small are told, options out of range are refused by name") {
  Agent agent;
  if (!agent.has_model) return;
  size_t count = 0;
  CHECK(cairn_state_get_last_logits(agent.state, nullptr, &count) == CAIRN_STATUS_WRONG_STATE);
  REQUIRE_OK(agent.prefill(3));
  CHECK(cairn_state_get_last_logits(agent.state, nullptr, &count) == CAIRN_STATUS_BUFFER_TOO_SMALL);
  std::vector<float> logits(count);
  REQUIRE_OK(cairn_state_get_last_logits(agent.state, logits.data(), &count));
  CHECK(cairn_state_get_last_logits(agent.state, nullptr, &count) == CAIRN_STATUS_INVALID_ARGUMENT);

  cairn_state* const twice[] = {agent.state, agent.state};
  const int32_t tokens[] = {1, 2};
  CHECK(cairn_decode(agent.stream, twice, tokens, 2) == CAIRN_STATUS_INVALID_ARGUMENT);
  CHECK(cairn_decode(agent.stream, twice, tokens, 1) == CAIRN_STATUS_OK);
  for (const int32_t too_many : {INT32_MIN, 0, 257, INT32_MAX}) {  // the arrays end long before
    CHECK(cairn_decode(agent.stream, twice, tokens, too_many) == CAIRN_STATUS_INVALID_ARGUMENT);
    const cairn_sequence sequence = {agent.state, tokens, 2, CAIRN_LOGITS_LAST, 0};
    cairn_batch batch = CAIRN_BATCH_INIT;
    batch.sequences = &sequence;
    batch.sequence_count = too_many;
    CHECK(cairn_prefill(agent.stream, &batch) == CAIRN_STATUS_INVALID_ARGUMENT);
    CHECK(std::string(cairn_last_error_message()).find(std::to_string(too_many)) != std::string::npos);
  }

  cairn_state* state = nullptr;
  cairn_state_options options = CAIRN_STATE_OPTIONS_INIT;
  options.rewind_spacing_tokens = 65;
  CHECK(cairn_state_create(agent.model, &options, &state) == CAIRN_STATUS_INVALID_ARGUMENT);
  CHECK(std::string(cairn_last_error_message()).find("65") != std::string::npos);
  options = CAIRN_STATE_OPTIONS_INIT;
  options.kv_capacity_tokens = -1;
  CHECK(cairn_state_create(agent.model, &options, &state) == CAIRN_STATUS_INVALID_ARGUMENT);
  options = CAIRN_STATE_OPTIONS_INIT;
  options.rewind_window_tokens = INT64_MIN;
  CHECK(cairn_state_create(agent.model, &options, &state) == CAIRN_STATUS_INVALID_ARGUMENT);
  options = CAIRN_STATE_OPTIONS_INIT;
  options.struct_size = 0;
  CHECK(cairn_state_create(agent.model, &options, &state) == CAIRN_STATUS_INVALID_ARGUMENT);
  CHECK(state == nullptr);
  cairn_model_info model = CAIRN_MODEL_INFO_INIT;
  REQUIRE_OK(cairn_model_get_info(agent.model, &model));
  cairn_state_statistics statistics = CAIRN_STATE_STATISTICS_INIT;
  for (int32_t layer = 0; layer < model.layer_count; ++layer) {
    REQUIRE_OK(cairn_state_get_statistics(agent.state, layer, &statistics));
    CHECK(statistics.non_finite_count == 0);
    CHECK(statistics.norm >= statistics.max_abs);
  }
  CHECK(cairn_state_get_statistics(agent.state, model.layer_count, &statistics) == CAIRN_STATUS_INVALID_ARGUMENT);
  CHECK(cairn_state_get_statistics(agent.state, -1, &statistics) == CAIRN_STATUS_INVALID_ARGUMENT);
}

TEST_CASE("reserved fields, flags that are neither 0 nor 1, and a count without its array are refused by name") {
  Agent agent;
  if (!agent.has_model) return;
  const auto refused = [](cairn_status status, const char* name) {
    const std::string message = cairn_last_error_message();
    return status == CAIRN_STATUS_INVALID_ARGUMENT && message.find(name) != std::string::npos;
  };
  cairn_state* state = nullptr;
  cairn_state_options state_options = CAIRN_STATE_OPTIONS_INIT;
  state_options.no_last_logits = 2;
  CHECK(refused(cairn_state_create(agent.model, &state_options, &state), "no_last_logits 2"));

  cairn_limits limits = CAIRN_LIMITS_INIT;
  limits.reserved = 1;
  cairn_model* model = nullptr;
  cairn_model_options model_options = CAIRN_MODEL_OPTIONS_INIT;
  model_options.limits = &limits;
  CHECK(refused(cairn_model_load(agent.device, CAIRN_MODEL_PATH, &model_options, &model), "reserved"));
  cairn_restore_options restore_options = CAIRN_RESTORE_OPTIONS_INIT;
  restore_options.limits = &limits;
  CHECK(refused(cairn_state_restore(agent.state, "/absent", &restore_options), "reserved"));
  model_options = CAIRN_MODEL_OPTIONS_INIT;
  model_options.no_mmap = -1;
  CHECK(refused(cairn_model_load(agent.device, CAIRN_MODEL_PATH, &model_options, &model), "no_mmap -1"));
  model_options = CAIRN_MODEL_OPTIONS_INIT;
  model_options.check_finite = 2;
  CHECK(refused(cairn_model_load(agent.device, CAIRN_MODEL_PATH, &model_options, &model), "check_finite 2"));
  cairn_snapshot_options snapshot_options = CAIRN_SNAPSHOT_OPTIONS_INIT;
  snapshot_options.include_rewind = 2;
  size_t size = 0;
  CHECK(refused(cairn_state_save_to_memory(agent.state, nullptr, &size, &snapshot_options), "include_rewind 2"));

  const int32_t token = 1;
  cairn_sequence sequence = {agent.state, &token, 1, CAIRN_LOGITS_LAST, 1};
  cairn_sparse_options sparse = CAIRN_SPARSE_OPTIONS_INIT;
  cairn_batch batch = CAIRN_BATCH_INIT;
  batch.sequences = &sequence;
  batch.sequence_count = 1;
  CHECK(refused(cairn_prefill(agent.stream, &batch), "cairn_sequence"));
  sequence.reserved = 0;
  batch.mode = CAIRN_PREFILL_SPARSE;
  batch.sparse = &sparse;
  sparse.reserved = -1;
  CHECK(refused(cairn_prefill(agent.stream, &batch), "cairn_sparse_options"));
  sparse = CAIRN_SPARSE_OPTIONS_INIT;
  sparse.full_inverse = 7;
  CHECK(refused(cairn_prefill(agent.stream, &batch), "full_inverse 7"));
  CHECK(position_of(agent.state) == 0);

  const float logits[] = {0, 1};
  int32_t chosen = 0;
  cairn_sampler_options sampler = CAIRN_SAMPLER_OPTIONS_INIT;
  sampler.recent_token_count = 1;
  CHECK(refused(cairn_sample(logits, 2, &sampler, &chosen), "recent_tokens"));
  sampler = CAIRN_SAMPLER_OPTIONS_INIT;
  sampler.reserved = 1;
  CHECK(refused(cairn_sample(logits, 2, &sampler, &chosen), "cairn_sampler_options"));
}

TEST_CASE("the layers' states add up to a fresh state, tables of slots too") {
  Agent agent;
  if (!agent.has_model) return;
  cairn_model_info model = CAIRN_MODEL_INFO_INIT;
  REQUIRE_OK(cairn_model_get_info(agent.model, &model));
  cairn_state_info fresh = CAIRN_STATE_INFO_INIT;
  REQUIRE_OK(cairn_state_get_info(agent.state, &fresh));

  uint64_t sum = 0;
  for (int32_t i = 0; i < model.layer_count; ++i) {
    cairn_layer_info layer = CAIRN_LAYER_INFO_INIT;
    REQUIRE_OK(cairn_model_get_layer_info(agent.model, i, &layer));
    if (layer.slots > 0) CHECK(layer.state_bytes == static_cast<uint64_t>(layer.key_heads * layer.slots) * 4);
    sum += layer.state_bytes;
  }

  CHECK(sum <= model.fresh_state_bytes);
  CHECK(model.fresh_state_bytes - sum < uint64_t{256} * 4 * static_cast<uint64_t>(model.layer_count));
  CHECK(model.fresh_state_bytes <= fresh.bytes_held);
}

TEST_CASE("sdm_rows is an option of loading: a program built before it loads f32 rows, values out of range are refused") {
  Agent agent;
  if (!agent.has_model) return;
  cairn_model* model = nullptr;
  cairn_model_options options = CAIRN_MODEL_OPTIONS_INIT;
  for (const cairn_precision bad : {-1, 3}) {
    options.sdm_rows = bad;
    CHECK(cairn_model_load(agent.device, CAIRN_MODEL_PATH, &options, &model) == CAIRN_STATUS_INVALID_ARGUMENT);
    CHECK(std::string(cairn_last_error_message()).find("sdm_rows " + std::to_string(bad)) != std::string::npos);
    CHECK(model == nullptr);
  }
  options.struct_size = offsetof(cairn_model_options, sdm_rows);  // 3 lies behind the caller's struct
  REQUIRE_OK(cairn_model_load(agent.device, CAIRN_MODEL_PATH, &options, &model));
  cairn_model_release(model);
  options = CAIRN_MODEL_OPTIONS_INIT;
  options.sdm_rows = CAIRN_PRECISION_BF16;
  REQUIRE_OK(cairn_model_load(agent.device, CAIRN_MODEL_PATH, &options, &model));

  cairn_state* state = nullptr;
  REQUIRE_OK(cairn_state_create(model, nullptr, &state));
  size_t size_bytes = 0;
  CHECK(cairn_state_save_to_memory(agent.state, nullptr, &size_bytes, nullptr) == CAIRN_STATUS_BUFFER_TOO_SMALL);
  std::vector<char> bytes(size_bytes);
  REQUIRE_OK(cairn_state_save_to_memory(agent.state, bytes.data(), &size_bytes, nullptr));
  REQUIRE_OK(cairn_state_restore_from_memory(state, bytes.data(), bytes.size(), nullptr));
  cairn_state_release(state);
  cairn_model_release(model);
}

TEST_CASE("hooks are refused while handles live, and callbacks cannot call back in") {
  cairn_device* device = nullptr;
  cairn_device_options options = CAIRN_DEVICE_OPTIONS_INIT;
  options.backend = "reference";
  static cairn_status from_log, from_allocator;
  REQUIRE_OK(cairn_set_log_callback(
      [](void*, cairn_log_level, const char*, const char*) {
        int32_t count = 0;
        from_log = cairn_backend_count(&count);
      },
      nullptr, CAIRN_LOG_DEBUG));
  REQUIRE_OK(cairn_device_open(&options, &device));
  cairn_allocator allocator = {sizeof(cairn_allocator), nullptr,
                               [](void*, size_t size, size_t alignment) {
                                 int32_t count = 0;
                                 from_allocator = cairn_backend_count(&count);
                                 return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
                               },
                               [](void*, void* memory, size_t) { std::free(memory); }};
  CHECK(cairn_set_allocator(&allocator) == CAIRN_STATUS_WRONG_STATE);
  cairn_device_release(device);
  REQUIRE_OK(cairn_set_allocator(&allocator));
  REQUIRE_OK(cairn_device_open(&options, &device));
  cairn_snapshot_info info = CAIRN_SNAPSHOT_INFO_INIT;
  const std::vector<char> nothing(4096);
  CHECK(cairn_snapshot_inspect_memory(nothing.data(), nothing.size(), nullptr, &info) == CAIRN_STATUS_FORMAT);
  cairn_device_release(device);
  REQUIRE_OK(cairn_set_allocator(nullptr));
  REQUIRE_OK(cairn_set_log_callback(nullptr, nullptr, 0));
  CHECK((from_log == CAIRN_STATUS_WRONG_STATE || from_log == CAIRN_STATUS_OK));
  CHECK((from_allocator == CAIRN_STATUS_WRONG_STATE || from_allocator == CAIRN_STATUS_OK));
  allocator.allocate = nullptr;
  CHECK(cairn_set_allocator(&allocator) == CAIRN_STATUS_INVALID_ARGUMENT);
  CHECK(cairn_set_log_callback([](void*, cairn_log_level, const char*, const char*) {}, nullptr, 9) == CAIRN_STATUS_INVALID_ARGUMENT);
  cairn_io io = {};
  io.struct_size = sizeof io;
  CHECK(cairn_set_io(&io) == CAIRN_STATUS_INVALID_ARGUMENT);
  options.backend = "";
  CHECK(cairn_device_open(&options, &device) == CAIRN_STATUS_INVALID_ARGUMENT);
}
