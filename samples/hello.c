/*
 * Reads a note, then answers a question from memory. Usage: hello MODEL
 * cc hello.c $(pkg-config --cflags --libs cairn) -Wl,-rpath,$(pkg-config --variable=libdir cairn) -o hello
 */
#include <cairn/cairn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char** argv) {
  const char* text = "Note: The code of the iron gate is 4821.\nQ: What is the code of the iron gate?\nA: ";
  int32_t tokens[256] = {256 /* BOS */}, token = 0;
  size_t count = 255;
  cairn_device* device; cairn_model* model; cairn_state* state; cairn_stream* stream;
  if (cairn_device_open(NULL, &device) || cairn_model_load(device, argv[argc - 1], NULL, &model) ||
      cairn_model_tokenize(model, text, strlen(text), tokens + 1, &count) ||
      cairn_state_create(model, NULL, &state) || cairn_stream_create(model, NULL, &stream))
    return fprintf(stderr, "%s\n", cairn_last_error_message()), 1;
  cairn_sequence sequence = {state, tokens, (int64_t)count + 1, CAIRN_LOGITS_LAST, 0};
  cairn_batch batch = {sizeof batch, &sequence, 1, CAIRN_PREFILL_DENSE, NULL, NULL, NULL};
  cairn_status status = cairn_prefill(stream, &batch);
  for (const float* logits; status == CAIRN_STATUS_OK && token != '\n';) {
    if ((status = cairn_stream_get_logits(stream, 0, &logits, &count))) break;
    if ((status = cairn_sample(logits, count, NULL, &token))) break;
    putchar(token);
    status = cairn_decode(stream, &state, &token, 1);
  }
  cairn_stream_release(stream), cairn_state_release(state), cairn_model_release(model), cairn_device_release(device);
  return status;
}
