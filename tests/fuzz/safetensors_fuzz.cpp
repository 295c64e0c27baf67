// A .safetensors file: its header and the bounds of its tensors. Each tensor's bytes are read once.
#include <filesystem>

#include "engine/formats/safetensors.h"
#include "kernels/error.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const qeng::fuzz::MemoryFile memory(data, size);
  try {
    const auto file = qeng::SafeTensors::open(memory.path());
    unsigned sum = 0;
    for (const qeng::StoredTensor& tensor : file->tensors())
      for (size_t i = 0; i < tensor.bytes; ++i) sum += static_cast<unsigned>(tensor.data[i]);
    volatile unsigned keep = sum;  // the reads above are the point
    static_cast<void>(keep);
  } catch (const qeng::Error&) {
  }
  return 0;
}
