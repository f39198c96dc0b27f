/* Every function of the C API with NULL for every pointer, and with handles that are none: an error with a message, and
 * never a crash. In C, so that the headers are used as C. */
#include <stdio.h>
#include <string.h>

#include "cairn/cairn.h"

static int failures = 0;

static void expect(cairn_status status, const char* call) {
  const int is_refused = status == CAIRN_STATUS_INVALID_ARGUMENT || status == CAIRN_STATUS_INVALID_HANDLE;
  if (is_refused && cairn_last_error_message()[0] != '\0') return;
  printf("%s: %s '%s'\n", call, cairn_status_name(status), cairn_last_error_message());
  ++failures;
}
#define REFUSED(call) expect((call), #call)

static int write_nothing(void* user, const void* data, size_t size_bytes) {
  (void)user, (void)data, (void)size_bytes;
  return 0;
}

static int read_nothing(void* user, void* data, size_t size_bytes, size_t* read_bytes) {
  (void)user, (void)data, (void)size_bytes;
  *read_bytes = 0;
  return 0;
}

static void devices_and_models(cairn_device* device, cairn_model* model) {
  cairn_device_info device_info = CAIRN_DEVICE_INFO_INIT;
  cairn_model_info model_info = CAIRN_MODEL_INFO_INIT;
  cairn_layer_info layer_info = CAIRN_LAYER_INFO_INIT;
  cairn_model* out = NULL;
  int32_t token = 0, is_stop = 0;
  size_t count = 0;
  char text[4];
  REFUSED(cairn_device_get_info(device, &device_info));
  REFUSED(cairn_device_get_info(device, NULL));
  REFUSED(cairn_model_load(device, "/absent", NULL, &out));
  REFUSED(cairn_model_load(device, NULL, NULL, &out));
  REFUSED(cairn_model_load(device, "/absent", NULL, NULL));
  REFUSED(cairn_model_load_from_memory(device, "x", 1, NULL, &out));
  REFUSED(cairn_model_load_from_memory(device, NULL, 1, NULL, &out));
  REFUSED(cairn_model_load_from_memory(device, "x", 1, NULL, NULL));
  REFUSED(cairn_model_get_info(model, &model_info));
  REFUSED(cairn_model_get_info(model, NULL));
  REFUSED(cairn_model_get_layer_info(model, 0, &layer_info));
  REFUSED(cairn_model_get_layer_info(model, 0, NULL));
  REFUSED(cairn_model_tokenize(model, "x", 1, &token, &count));
  REFUSED(cairn_model_tokenize(model, NULL, 1, &token, &count));
  REFUSED(cairn_model_tokenize(model, "x", 1, &token, NULL));
  REFUSED(cairn_model_detokenize(model, &token, 1, text, &count));
  REFUSED(cairn_model_detokenize(model, NULL, 1, text, &count));
  REFUSED(cairn_model_detokenize(model, &token, 1, text, NULL));
  REFUSED(cairn_model_is_stop_token(model, 0, &is_stop));
  REFUSED(cairn_model_is_stop_token(model, 0, NULL));
}

static void states(cairn_model* model, cairn_state* state) {
  cairn_state* out = NULL;
  cairn_state_info info = CAIRN_STATE_INFO_INIT;
  cairn_state_statistics statistics = CAIRN_STATE_STATISTICS_INIT;
  int32_t can = 0;
  uint8_t written = 0;
  float logit = 0;
  size_t count = 1;
  REFUSED(cairn_state_create(model, NULL, &out));
  REFUSED(cairn_state_create(model, NULL, NULL));
  REFUSED(cairn_state_fork(state, &out));
  REFUSED(cairn_state_fork(state, NULL));
  REFUSED(cairn_state_reset(state));
  REFUSED(cairn_state_rewind(state, 0));
  REFUSED(cairn_state_can_rewind(state, 0, &can));
  REFUSED(cairn_state_can_rewind(state, 0, NULL));
  REFUSED(cairn_state_get_info(state, &info));
  REFUSED(cairn_state_get_info(state, NULL));
  REFUSED(cairn_state_get_statistics(state, 0, &statistics));
  REFUSED(cairn_state_get_statistics(state, 0, NULL));
  REFUSED(cairn_state_get_written_slots(state, 0, &written, &count));
  REFUSED(cairn_state_get_written_slots(state, 0, &written, NULL));
  REFUSED(cairn_state_get_last_logits(state, &logit, &count));
  REFUSED(cairn_state_get_last_logits(state, &logit, NULL));
}

static void snapshots(cairn_state* state) {
  cairn_snapshot_info info = CAIRN_SNAPSHOT_INFO_INIT;
  cairn_snapshot_section section = CAIRN_SNAPSHOT_SECTION_INIT;
  char data[64] = {0};
  size_t size = sizeof data;
  REFUSED(cairn_state_save(state, "/tmp/x", NULL));
  REFUSED(cairn_state_save(state, NULL, NULL));
  REFUSED(cairn_state_save_to_memory(state, data, &size, NULL));
  REFUSED(cairn_state_save_to_memory(state, data, NULL, NULL));
  REFUSED(cairn_state_save_to_callback(state, write_nothing, NULL, NULL));
  REFUSED(cairn_state_save_to_callback(state, NULL, NULL, NULL));
  REFUSED(cairn_state_restore(state, "/tmp/x", NULL));
  REFUSED(cairn_state_restore(state, NULL, NULL));
  REFUSED(cairn_state_restore_from_memory(state, data, size, NULL));
  REFUSED(cairn_state_restore_from_memory(state, NULL, size, NULL));
  REFUSED(cairn_state_restore_from_callback(state, read_nothing, NULL, NULL));
  REFUSED(cairn_state_restore_from_callback(state, NULL, NULL, NULL));
  REFUSED(cairn_snapshot_inspect(NULL, NULL, &info));
  REFUSED(cairn_snapshot_inspect("/tmp/x", NULL, NULL));
  REFUSED(cairn_snapshot_inspect_memory(NULL, 0, NULL, &info));
  REFUSED(cairn_snapshot_inspect_memory(data, sizeof data, NULL, NULL));
  REFUSED(cairn_snapshot_get_section(NULL, 0, &section));
  REFUSED(cairn_snapshot_get_section("/tmp/x", 0, NULL));
}

static void streams(cairn_model* model, cairn_state* state, cairn_stream* stream, cairn_text_decoder* decoder) {
  cairn_stream* out = NULL;
  cairn_text_decoder* decoder_out = NULL;
  cairn_batch batch = CAIRN_BATCH_INIT;
  const float* logits = NULL;
  const char* text = NULL;
  const float values[2] = {0, 1};
  int32_t token = 0;
  int64_t rows = 0;
  size_t count = 0;
  REFUSED(cairn_stream_create(model, NULL, &out));
  REFUSED(cairn_stream_create(model, NULL, NULL));
  REFUSED(cairn_prefill(stream, &batch));
  REFUSED(cairn_prefill(stream, NULL));
  REFUSED(cairn_decode(stream, &state, &token, 1));
  REFUSED(cairn_decode(stream, NULL, &token, 1));
  REFUSED(cairn_decode(stream, &state, NULL, 1));
  REFUSED(cairn_stream_synchronize(stream));
  REFUSED(cairn_stream_get_logits(stream, 0, &logits, &count));
  REFUSED(cairn_stream_get_logits(stream, 0, NULL, &count));
  REFUSED(cairn_stream_get_logits(stream, 0, &logits, NULL));
  REFUSED(cairn_stream_get_logits_row_count(stream, &rows));
  REFUSED(cairn_stream_get_logits_row_count(stream, NULL));
  REFUSED(cairn_sample(NULL, 2, NULL, &token));
  REFUSED(cairn_sample(values, 2, NULL, NULL));
  REFUSED(cairn_text_decoder_create(model, &decoder_out));
  REFUSED(cairn_text_decoder_create(model, NULL));
  REFUSED(cairn_text_decoder_push(decoder, 0, &text, &count));
  REFUSED(cairn_text_decoder_push(decoder, 0, NULL, &count));
  REFUSED(cairn_text_decoder_push(decoder, 0, &text, NULL));
  REFUSED(cairn_text_decoder_finish(decoder, &text, &count));
  REFUSED(cairn_text_decoder_finish(decoder, NULL, NULL));
}

int main(void) {
  const uintptr_t values[] = {0, 1, 8, 4096, (uintptr_t)1 << 60, (uintptr_t)3 << 60, ~(uintptr_t)0};
  cairn_backend_info backend = CAIRN_BACKEND_INFO_INIT;
  char released[16] = {0};
  size_t i;
  REFUSED(cairn_backend_count(NULL));
  REFUSED(cairn_backend_get_info(0, NULL));
  REFUSED(cairn_backend_get_info(-1, &backend));
  REFUSED(cairn_backend_get_info(1000, &backend));
  REFUSED(cairn_device_open(NULL, NULL));
  REFUSED(cairn_pack(NULL, "/tmp/x", NULL));
  REFUSED(cairn_pack("/tmp", NULL, NULL));
  for (i = 0; i < sizeof values / sizeof values[0]; ++i) {
    void* handle = (void*)values[i];
    devices_and_models((cairn_device*)handle, (cairn_model*)handle);
    states((cairn_model*)handle, (cairn_state*)handle);
    snapshots((cairn_state*)handle);
    streams((cairn_model*)handle, (cairn_state*)handle, (cairn_stream*)handle, (cairn_text_decoder*)handle);
    cairn_device_release((cairn_device*)handle);
    cairn_model_release((cairn_model*)handle);
    cairn_state_release((cairn_state*)handle);
    cairn_stream_release((cairn_stream*)handle);
    cairn_text_decoder_release((cairn_text_decoder*)handle);
  }
  if (cairn_abi_version() != CAIRN_ABI_VERSION) ++failures;
  snprintf(released, sizeof released, "%d.%d.%d", CAIRN_VERSION_MAJOR, CAIRN_VERSION_MINOR, CAIRN_VERSION_PATCH);
  if (strcmp(cairn_version_string(), released) != 0) ++failures;
  if (strcmp(cairn_status_name(CAIRN_STATUS_BUSY), "CAIRN_STATUS_BUSY") != 0) ++failures;
  if (strcmp(cairn_status_name(12345), "CAIRN_STATUS_UNKNOWN") != 0) ++failures;
  printf("%s: %d failures\n", failures == 0 ? "passed" : "FAILED", failures);
  return failures == 0 ? 0 : 1;
}
