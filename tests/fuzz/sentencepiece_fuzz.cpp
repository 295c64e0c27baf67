// SentencePiece models: load or are refused, also with tokens that a folder adds and puts in place of pieces.
#include "engine/tokenizer/loaders.h"
#include "kernels/error.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  qeng::fuzz::MemoryFile file(data, size);
  try {
    auto tokenizer = qeng::load_sentencepiece(file.path(), nlohmann::json::object(), "", {});
    tokenizer->decode(tokenizer->encode("The cat's hat <s>\n\xc3\xa9", true));
    tokenizer = qeng::load_sentencepiece(file.path(), nlohmann::json::object(), "",
                                         {{1, {"<new>", 1}}, {5, {"cat", 5, false}}, {300, {"<|x|>", 300}}});
    tokenizer->decode(tokenizer->encode("The cat's<|x|> hat <new>\n\xc3\xa9", true));
  } catch (const qeng::Error&) {
  }
  return 0;
}
