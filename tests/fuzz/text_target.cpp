// F6: bytes as streamed text, in pieces of any length: the output is the same and valid UTF-8.
#include <cstdlib>

#include "runtime/text/utf8_stream.h"
#include "tests/fuzz/fuzz_targets.h"

namespace cairn::test {

void fuzz_text(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  Utf8Stream whole, pieces, again;
  std::string at_once, piecewise, twice;
  whole.push(bytes, at_once);
  whole.finish(at_once);
  for (std::size_t i = 0; i < size;) {
    const std::size_t step = 1 + data[i] % 3;
    pieces.push(bytes.substr(i, step), piecewise);
    i += step;
  }
  pieces.finish(piecewise);
  again.push(at_once, twice);
  again.finish(twice);
  if (at_once != piecewise || twice != at_once) std::abort();  // valid text passes unchanged
}

}  // namespace cairn::test

CAIRN_FUZZ_ENTRY(fuzz_text)
