// What a peer says that a file or a folder holds. The hash is made right, so that parsers see every mutation: what they
// take is written as the same text again.
#include <cstdlib>

#include "engine/blocks/manifest.h"
#include "kernels/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size), hash = qeng::hex(qeng::sha256(text));
  try {
    if (qeng::parse_manifest(text, hash).text() != text) std::abort();
  } catch (const qeng::Error&) {
  }
  try {
    if (qeng::folder_text(qeng::parse_folder(text, hash)) != text) std::abort();
  } catch (const qeng::Error&) {
  }
  return 0;
}
