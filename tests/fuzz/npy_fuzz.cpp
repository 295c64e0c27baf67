// A .npy file: its header, the size of its data, and its elements in C's order.
#include "engine/formats/npy.h"
#include "kernels/error.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const qeng::fuzz::MemoryFile memory(data, size);
  try {
    const qeng::NpyArray array = qeng::read_npy(memory.path());
    size_t elements = 1;
    for (int64_t dim : array.shape) elements *= static_cast<size_t>(dim);
    if (array.data.size() != elements * qeng::dtype_size(array.dtype)) std::abort();
  } catch (const qeng::Error&) {
  }
  return 0;
}
