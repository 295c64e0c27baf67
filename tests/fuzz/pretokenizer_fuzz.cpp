// The text itself: whatever its bytes, every grammar's pieces cover it, and it is normalised to a fixed point.
#include <cstdlib>
#include <memory>

#include "engine/tokenizer/pretokenizer.h"
#include "engine/tokenizer/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string valid_storage, nfc_storage, again;
  std::string_view valid = qeng::valid_utf8({reinterpret_cast<const char*>(data), size}, valid_storage);
  std::string_view normal = qeng::nfc(valid, nfc_storage);
  if (qeng::nfc(normal, again) != normal || qeng::valid_utf8(normal, again) != normal) std::abort();
  // A copy of its own, so that a sanitizer sees a read past the end.
  std::unique_ptr<char[]> text(new char[normal.size()]);
  normal.copy(text.get(), normal.size());
  for (const char* name : {"qwen2", "qwen3.5", "llama3", "cl100k", "o200k", "tekken", "gpt2"}) {
    const char *p = text.get(), *end = p + normal.size();
    while (p < end) {
      uint32_t lengths[7];
      size_t count = qeng::find_grammar(name)->cut(p, end, lengths, 7);
      if (count == 0 || count > 7) std::abort();
      for (size_t i = 0; i < count; ++i) {
        if (lengths[i] == 0 || lengths[i] > static_cast<size_t>(end - p)) std::abort();
        p += lengths[i];
        if (p < end && (static_cast<uint8_t>(*p) & 0xC0) == 0x80) std::abort();  // cut inside a character
      }
    }
  }
  return 0;
}
