#include "completion.h"

#include <algorithm>

#include "progress_bar.h"

namespace cairn_cli {

// The logits after the last token read: of the prompt, of a restored state, or of the token decoded last.
static int32_t choose(cairn_state* state, std::vector<float>& logits, const cairn_sampler_options& sampler) {
  size_t count = logits.size();
  check(cairn_state_get_last_logits(state, logits.data(), &count), "no logits");
  int32_t token = 0;
  check(cairn_sample(logits.data(), count, &sampler, &token), "cannot choose a token");
  return token;
}

static bool hand_over(cairn_text_decoder* decoder, int32_t token, const TextSink& sink) {
  const char* text = nullptr;
  size_t size_bytes = 0;
  check(cairn_text_decoder_push(decoder, token, &text, &size_bytes), "cannot decode text");
  return size_bytes == 0 || sink(std::string_view(text, size_bytes));
}

int complete(const Session& session, cairn_stream* stream, cairn_state* state, std::string_view prompt,
             const CompletionOptions& options, const TextSink& sink) {
  std::vector<int32_t> history = session.tokenize_for(state, prompt);
  if (!history.empty()) read_tokens(stream, state, history);
  cairn_text_decoder* created = nullptr;
  check(cairn_text_decoder_create(session.model(), &created), "cannot decode text");
  const TextDecoder decoder(created);

  std::vector<float> logits(static_cast<size_t>(session.info().vocab_size));
  cairn_sampler_options sampler = options.sampler;
  int said = 0;
  while (said < options.max_tokens && !interrupted()) {
    const size_t recent = std::min(history.size(), static_cast<size_t>(options.recent_tokens));
    sampler.recent_tokens = history.data() + (history.size() - recent);
    sampler.recent_token_count = recent;
    sampler.draw = static_cast<uint64_t>(info_of(state).position);
    const int32_t token = choose(state, logits, sampler);
    if (session.is_stop(token)) break;
    ++said;
    if (!hand_over(decoder.get(), token, sink)) return said;
    history.push_back(token);
    check(cairn_decode(stream, &state, &token, 1), "cannot go on");
  }
  const char* text = nullptr;
  size_t size_bytes = 0;
  check(cairn_text_decoder_finish(decoder.get(), &text, &size_bytes), "cannot decode text");
  if (size_bytes > 0) sink(std::string_view(text, size_bytes));
  return said;
}

}  // namespace cairn_cli
