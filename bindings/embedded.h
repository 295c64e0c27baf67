// The Lua library and api.lua, embedded at build time by embed.cmake. The table ends with a null path.
#pragma once
#include <cstddef>

namespace qeng {
struct EmbeddedFile {
  const char* path;  // relative to the repository: "scripts/qeng/chat/init.lua", "bindings/api.lua"
  const char* text;  // NUL-terminated
  size_t size;       // bytes, without the NUL
};
extern const EmbeddedFile kEmbeddedFiles[];
}  // namespace qeng
