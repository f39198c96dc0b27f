#include "runtime/text/utf8_stream.h"

namespace cairn {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

}  // namespace

/// The first byte of a character: tells its length and the range of the second byte (no overlong forms, no surrogates,
/// nothing past U+10FFFF).
void Utf8Stream::begin(unsigned char byte, std::string& text) {
  low_ = 0x80;
  high_ = 0xbf;
  if (byte < 0x80) {
    text += static_cast<char>(byte);
    return;
  }
  if (byte >= 0xc2 && byte <= 0xdf)
    wanted_ = 2;
  else if (byte >= 0xe0 && byte <= 0xef)
    wanted_ = 3;
  else if (byte >= 0xf0 && byte <= 0xf4)
    wanted_ = 4;
  else {
    text += kReplacement;
    return;
  }
  if (byte == 0xe0) low_ = 0xa0;
  if (byte == 0xed) high_ = 0x9f;
  if (byte == 0xf0) low_ = 0x90;
  if (byte == 0xf4) high_ = 0x8f;
  held_[0] = static_cast<char>(byte);
  held_count_ = 1;
}

void Utf8Stream::push(std::string_view bytes, std::string& text) {
  for (char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (held_count_ == 0) {
      begin(byte, text);
    } else if (byte < low_ || byte > high_) {  // ends the subpart before this byte, which begins anew
      held_count_ = 0;
      text += kReplacement;
      begin(byte, text);
    } else {
      held_[held_count_++] = c;
      low_ = 0x80;
      high_ = 0xbf;
      if (held_count_ == wanted_) {
        text.append(held_.data(), held_count_);
        held_count_ = 0;
      }
    }
  }
}

void Utf8Stream::finish(std::string& text) {
  if (held_count_ > 0) text += kReplacement;
  held_count_ = 0;
}

}  // namespace cairn
