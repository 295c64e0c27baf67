// A folder of packed layers: its config.json is the first line, what follows is model.safetensors. Each joined layer is
// decoded, into memory of its size.
#include "engine/formats/packed_layers.h"
#include "engine/formats/safetensors.h"
#include "kernels/error.h"
#include "tests/fuzz/memory_file.h"

namespace {

// The joined layers, while they have no more than `budget` bytes.
void walk(const qeng::WeightFile& file, size_t budget) {
  for (const qeng::StoredTensor& tensor : file.tensors()) {
    if (!tensor.decoder) continue;
    const size_t bytes = file.view(tensor.name).bytes();
    if (bytes > budget) continue;
    std::vector<std::byte> values(bytes);  // the sanitizer sees where they end
    try {
      tensor.decoder->decode(values.data());
    } catch (const qeng::Error&) {
    }
    budget -= bytes;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t line = std::min(text.find('\n'), size), begin = std::min(line + 1, size);
  const qeng::fuzz::MemoryFile memory(data + begin, size - begin);
  try {
    const nlohmann::json settings = qeng::quantization_of("config.json", text.substr(0, line));
    const auto stored = qeng::SafeTensors::open(memory.path());
    const auto file = qeng::PackedLayers::open(stored, "config.json", settings);
    if (file->tensors().size() > stored->tensors().size()) std::abort();
    walk(*file, 1 << 20);
  } catch (const qeng::Error&) {
  }
  return 0;
}
