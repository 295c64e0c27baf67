// A .gguf file: its entries, the bounds of its tensors, and the tokenizer that its entries describe. Each tensor's
// bytes and each value are read once, and blocks are decoded and multiplied with; text goes to ids and back.
#include "engine/formats/gguf.h"
#include "engine/tokenizer/vocabulary.h"
#include "kernels/error.h"
#include "tests/fuzz/block_walk.h"
#include "tests/fuzz/memory_file.h"

namespace {

uint64_t touch(const qeng::MetadataValue& value) {
  if (const auto* text = std::get_if<std::string_view>(&value)) {
    uint64_t sum = 0;
    for (char c : *text) sum += static_cast<uint8_t>(c);
    return sum;
  }
  const auto* array = std::get_if<std::shared_ptr<const qeng::MetadataArray>>(&value);
  uint64_t sum = 1;
  for (uint64_t i = 0; array && i < (*array)->count; ++i) sum += touch((*array)->at(i));
  return sum;
}

// The tensors of blocks, while they have no more than `budget` bytes: names may share bytes by the thousand.
void walk(const qeng::Gguf& file, size_t budget) {
  for (const qeng::StoredTensor& tensor : file.tensors()) {
    if (tensor.bytes > budget || tensor.bytes == 0) continue;
    std::vector<std::byte> bytes(tensor.data, tensor.data + tensor.bytes);  // the sanitizer sees where they end
    if (tensor.decoder) {
      qeng::fuzz::walk_nvfp4(bytes);
    } else if (tensor.dtype && qeng::is_block(*tensor.dtype)) {
      const qeng::View view = file.view(tensor.name);
      qeng::fuzz::walk_blocks(view.dtype, bytes, view.rows(), view.columns());
    }
    budget -= tensor.bytes;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const qeng::fuzz::MemoryFile memory(data, size);
  try {
    const auto file = qeng::Gguf::open(memory.path());
    uint64_t sum = 0;
    for (const qeng::MetadataEntry& entry : file->entries()) sum += touch(entry.value);
    for (const qeng::StoredTensor& tensor : file->tensors())
      for (size_t i = 0; i < tensor.bytes; ++i) sum += static_cast<uint8_t>(tensor.data[i]);
    volatile uint64_t keep = sum;  // the reads above are the point
    static_cast<void>(keep);
    walk(*file, 32 << 10);
    const auto tokenizer = qeng::load_gguf_tokenizer(*file);
    for (const char* text : {"Hello, world 123", "\xE2\x96\x81 \xC3\xA9\n<s>"})
      static_cast<void>(tokenizer->decode(tokenizer->encode(text, true)));
    static_cast<void>(tokenizer->vocabulary());
  } catch (const qeng::Error&) {
  }
  return 0;
}
