// tokenizer.json: loads or is refused, and what loads gives ids of its vocabulary and decodes them.
#include "engine/tokenizer/loaders.h"
#include "kernels/error.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  qeng::fuzz::MemoryFile file(data, size);
  try {
    auto tokenizer = qeng::load_tokenizer_json(file.path(), qeng::read_json(file.path()), nlohmann::json::object(), "");
    std::string text = "The cat's 12345 <|end|>\n\n  \xc3\xa9\xff";
    for (bool special : {false, true})
      for (const int32_t id : tokenizer->encode(text, special))
        if (id < 0 || id >= tokenizer->vocab_size()) std::abort();
    tokenizer->decode(tokenizer->encode(text, true));
  } catch (const qeng::Error&) {
  }
  return 0;
}
