// Rank files: load or are refused, and what loads gives each text back.
#include "engine/tokenizer/tokenizer.h"
#include "kernels/error.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  qeng::fuzz::MemoryFile file(data, size);
  try {
    auto tokenizer = qeng::load_tiktoken(file.path());
    std::string text = "The cat's 12345 hats\n\n  \xc3\xa9!";
    if (tokenizer->decode(tokenizer->encode(text, false)) != text) std::abort();
  } catch (const qeng::Error&) {
  }
  return 0;
}
