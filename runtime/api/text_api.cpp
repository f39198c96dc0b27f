// Tokens and text: cairn_model_tokenize and friends, and the streaming decoder of cairn/stream.h.
#include <algorithm>

#include "runtime/api/objects.h"
#include "runtime/execution/plan.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/utf8_stream.h"

namespace cairn::api {
namespace {

struct TextDecoderObject {
  static constexpr HandleKind kHandleKind = HandleKind::kTextDecoder;
  std::shared_ptr<const Tokenizer> tokenizer;
  Utf8Stream utf8;
  std::string lent;  ///< the text of the last call
  std::atomic<bool> busy{false};
};

Result<std::shared_ptr<const Tokenizer>> tokenizer_of(const cairn_model* model) {
  CAIRN_TRY_ASSIGN(const Pin<ModelObject> held, pin<ModelObject>(model));
  if (!held->tokenizer) return Status::unsupported("the model carries no tokenizer");
  return std::shared_ptr<const Tokenizer>(held->tokenizer);
}

Status tokenize(const cairn_model* model, const char* text, size_t text_bytes, int32_t* tokens, size_t* count) {
  CAIRN_REQUIRE(count);
  if (text_bytes > 0) CAIRN_REQUIRE(text);
  CAIRN_TRY_ASSIGN(const std::shared_ptr<const Tokenizer> tokenizer, tokenizer_of(model));
  std::vector<std::int32_t> ids;
  CAIRN_TRY(tokenizer->encode({text, text_bytes}, ids));
  CAIRN_TRY(check_room(tokens, ids.size(), "tokens", count));
  std::copy(ids.begin(), ids.end(), tokens);
  return {};
}

Status detokenize(const cairn_model* model, const int32_t* tokens, size_t token_count, char* text, size_t* text_bytes) {
  CAIRN_REQUIRE(text_bytes);
  if (token_count > 0) CAIRN_REQUIRE(tokens);
  CAIRN_TRY_ASSIGN(const std::shared_ptr<const Tokenizer> tokenizer, tokenizer_of(model));
  for (size_t i = 0; i < token_count; ++i) {
    if (tokens[i] < 0) return Status::invalid_argument("token %zu is %d: negative", i, tokens[i]);
  }
  const std::string bytes = tokenizer->decode({tokens, token_count}, true);
  CAIRN_TRY(check_room(text, bytes.size(), "text", text_bytes));
  std::copy(bytes.begin(), bytes.end(), text);
  return {};
}

/// Runs `fill(object)` on a decoder that nobody else uses and lends the text it leaves.
template <class Fill>
Status lend(cairn_text_decoder* decoder, const char** text, size_t* text_bytes, Fill fill) {
  CAIRN_REQUIRE(text);
  CAIRN_REQUIRE(text_bytes);
  CAIRN_TRY_ASSIGN(const Pin<TextDecoderObject> held, pin<TextDecoderObject>(decoder));
  CAIRN_TRY_ASSIGN(const BusyLock lock, BusyLock::acquire(held->busy, "text decoder"));
  held->lent.clear();
  CAIRN_TRY(fill(*held));
  *text = held->lent.c_str();
  *text_bytes = held->lent.size();
  return {};
}

}  // namespace
}  // namespace cairn::api

using namespace cairn;
using namespace cairn::api;

cairn_status cairn_model_tokenize(const cairn_model* model, const char* text, size_t text_bytes, int32_t* tokens, size_t* count) {
  return guarded([&] { return tokenize(model, text, text_bytes, tokens, count); });
}

cairn_status cairn_model_detokenize(const cairn_model* model, const int32_t* tokens, size_t token_count, char* text,
                                    size_t* text_bytes) {
  return guarded([&] { return detokenize(model, tokens, token_count, text, text_bytes); });
}

cairn_status cairn_model_get_chat_template(const cairn_model* model, char* text, size_t* text_bytes) {
  return guarded([&]() -> Status {
    CAIRN_REQUIRE(text_bytes);
    CAIRN_TRY_ASSIGN(const Pin<ModelObject> held, pin<ModelObject>(model));
    const std::string& source = held->plan->description().tokenizer.chat_template;
    CAIRN_TRY(check_room(text, source.size(), "text", text_bytes));
    std::copy(source.begin(), source.end(), text);
    return {};
  });
}

cairn_status cairn_model_is_stop_token(const cairn_model* model, int32_t token, int32_t* is_stop) {
  return guarded([&]() -> Status {
    CAIRN_REQUIRE(is_stop);
    CAIRN_TRY_ASSIGN(const Pin<ModelObject> held, pin<ModelObject>(model));
    const TokenizerConfig& config = held->plan->description().tokenizer;
    const bool is_listed = std::find(config.stop_tokens.begin(), config.stop_tokens.end(), token) != config.stop_tokens.end();
    *is_stop = token >= 0 && (is_listed || token == config.eos) ? 1 : 0;
    return {};
  });
}

cairn_status cairn_text_decoder_create(cairn_model* model, cairn_text_decoder** decoder) {
  return guarded([&]() -> Status {
    CAIRN_REQUIRE(decoder);
    *decoder = nullptr;
    auto object = std::make_shared<TextDecoderObject>();
    CAIRN_TRY_ASSIGN(object->tokenizer, tokenizer_of(model));
    return give_out(std::move(object), decoder);
  });
}

cairn_status cairn_text_decoder_push(cairn_text_decoder* decoder, int32_t token, const char** text, size_t* text_bytes) {
  return guarded([&] {
    return lend(decoder, text, text_bytes, [token](TextDecoderObject& object) -> Status {
      if (token < 0) return Status::invalid_argument("token %d is negative", token);
      if (!object.tokenizer->is_special(token)) object.utf8.push(object.tokenizer->token_bytes(token), object.lent);
      return {};
    });
  });
}

cairn_status cairn_text_decoder_finish(cairn_text_decoder* decoder, const char** text, size_t* text_bytes) {
  return guarded([&] {
    return lend(decoder, text, text_bytes, [](TextDecoderObject& object) -> Status {
      object.utf8.finish(object.lent);
      return {};
    });
  });
}

void cairn_text_decoder_release(cairn_text_decoder* decoder) { give_back<TextDecoderObject>(decoder); }
