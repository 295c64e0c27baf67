// Parquet: its rows come as JSON lines, or the file is refused.
#include <nlohmann/json.hpp>

#include "engine/parquet/parquet_source.h"
#include "engine/tokenizer/unicode.h"
#include "kernels/error.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  qeng::fuzz::MemoryFile file(data, size);
  try {
    const auto source = qeng::open_parquet(file.path());
    std::string text(1 << 16, '\0');
    size_t total = 0;
    std::string first;
    while (const size_t n = source->read(text.data(), text.size())) {
      if (total == 0) first = text.substr(0, n);
      if ((total += n) > (8u << 20)) break;  // small files may hold runs without end
    }
    const size_t line = first.find('\n');
    std::string storage;  // text may be no UTF-8
    if (line != first.npos && !nlohmann::json::accept(qeng::valid_utf8(first.substr(0, line), storage))) std::abort();
  } catch (const qeng::Error&) {
  }
  return 0;
}
