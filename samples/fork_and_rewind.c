/*
 * One reading, many lives: two forks of a memory learn different things, and a rewind unlearns the last one.
 * Usage: fork_and_rewind [MODEL]
 * cc fork_and_rewind.c $(pkg-config --cflags --libs cairn) -Wl,-rpath,$(pkg-config --variable=libdir cairn) -o fork_and_rewind
 */
#include <cairn/cairn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cairn_model* model;
static cairn_stream* stream;

static void check(cairn_status status) {
  if (status == CAIRN_STATUS_OK) return;
  fprintf(stderr, "%s: %s\n", cairn_status_name(status), cairn_last_error_message());
  exit(1);
}

/* Reads text; the model's first token goes before the first text. */
static void tell(cairn_state* state, const char* text) {
  int32_t tokens[1024];
  size_t count = 1023;
  cairn_state_info info = CAIRN_STATE_INFO_INIT;
  cairn_model_info model_info = CAIRN_MODEL_INFO_INIT;
  check(cairn_state_get_info(state, &info));
  check(cairn_model_get_info(model, &model_info));
  const int first = info.position == 0 && model_info.add_bos;
  tokens[0] = model_info.bos_token;
  check(cairn_model_tokenize(model, text, strlen(text), tokens + first, &count));
  cairn_sequence sequence = {state, tokens, (int64_t)count + first, CAIRN_LOGITS_LAST, 0};
  cairn_batch batch = CAIRN_BATCH_INIT;
  batch.sequences = &sequence;
  batch.sequence_count = 1;
  check(cairn_prefill(stream, &batch));
}

/* Asks on a fork, so that the question does not stay in the memory. */
static void ask(cairn_state* state, const char* who, const char* question) {
  cairn_state* fork;
  int32_t token = 0;
  check(cairn_state_fork(state, &fork));
  tell(fork, question);
  printf("%s: ", who);
  for (int i = 0; i < 64; ++i) {
    const float* logits;
    size_t count;
    check(cairn_stream_get_logits(stream, 0, &logits, &count));
    check(cairn_sample(logits, count, NULL, &token));
    if (token == '\n') break;
    putchar(token);
    check(cairn_decode(stream, &fork, &token, 1));
  }
  putchar('\n');
  cairn_state_release(fork);
}

int main(int argc, char** argv) {
  const char* const question = "\nQ: What is the code of Marlen Tovik?\nA: ";
  cairn_device* device;
  cairn_state *first, *second;
  cairn_state_options options = CAIRN_STATE_OPTIONS_INIT;
  cairn_state_info info = CAIRN_STATE_INFO_INIT;
  options.rewind_window_tokens = 1024;
  check(cairn_device_open(NULL, &device));
  check(cairn_model_load(device, argc > 1 ? argv[1] : "samples/models/wayfarer.cairn", NULL, &model));
  check(cairn_stream_create(model, NULL, &stream));
  check(cairn_state_create(model, &options, &first));

  tell(first, "Note: The code of Marlen Tovik is 4821.\nNote: The colour of the iron gate is teal.");
  check(cairn_state_fork(first, &second));
  check(cairn_state_get_info(second, &info));
  printf("the fork holds %llu bytes, %llu of them shared\n", (unsigned long long)info.bytes_held,
         (unsigned long long)info.bytes_shared);
  check(cairn_state_get_info(first, &info));
  tell(first, "\nCorrection: The code of Marlen Tovik is 7730.");
  ask(first, "told of the correction", question);
  ask(second, "the fork, not told", question);
  check(cairn_state_rewind(first, info.position));
  ask(first, "rewound to before it", question);
  cairn_device_release(device);
  cairn_model_release(model);
  cairn_stream_release(stream);
  cairn_state_release(first);
  cairn_state_release(second);
  return 0;
}
