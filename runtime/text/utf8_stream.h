// Bytes that come in pieces become valid UTF-8: whole characters only.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace cairn {

/// Holds back a character that is not complete yet. Bytes that can never become a character turn into U+FFFD, one for
/// each maximal subpart (Unicode 3.9, "U+FFFD Substitution of Maximal Subparts"), as browsers and Python do.
class Utf8Stream {
 public:
  /// Appends to `text` what is complete now.
  void push(std::string_view bytes, std::string& text);
  /// Ends the text: what was held back is one U+FFFD. Empty afterwards.
  void finish(std::string& text);

 private:
  void begin(unsigned char byte, std::string& text);

  std::array<char, 4> held_{};
  std::size_t held_count_ = 0, wanted_ = 0;  ///< of the character being read; 0: none
  unsigned char low_ = 0x80, high_ = 0xbf;   ///< range of its next byte
};

}  // namespace cairn
