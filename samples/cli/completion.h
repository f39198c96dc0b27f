// Goes on from a state, token by token.
#pragma once

#include <functional>
#include <string_view>

#include "cli_session.h"

namespace cairn_cli {

/// Takes text as it appears; returns false to end.
using TextSink = std::function<bool(std::string_view text)>;

struct CompletionOptions {
  int max_tokens = 256;
  int recent_tokens = 64;  ///< how far back the repetition penalty looks
  cairn_sampler_options sampler = CAIRN_SAMPLER_OPTIONS_INIT;
};

/// Reads `prompt` into `state` and then what it says itself, until a stop token, max_tokens, Ctrl-C, or the sink's end.
/// The last token said is not read when the sink ended there: a newline that ends an answer stays out of the memory.
/// @return tokens said
int complete(const Session& session, cairn_stream* stream, cairn_state* state, std::string_view prompt,
             const CompletionOptions& options, const TextSink& sink);

}  // namespace cairn_cli
