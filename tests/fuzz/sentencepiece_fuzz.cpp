// SentencePiece models: load or are refused.
#include "engine/tokenizer/loaders.h"
#include "kernels/error.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  qeng::fuzz::MemoryFile file(data, size);
  try {
    auto tokenizer = qeng::load_sentencepiece(file.path(), nlohmann::json::object(), "");
    tokenizer->decode(tokenizer->encode("The cat's hat <s>\n\xc3\xa9", true));
  } catch (const qeng::Error&) {
  }
  return 0;
}
