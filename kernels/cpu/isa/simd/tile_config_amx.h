// The shapes of AMX tiles, as _tile_loadconfig takes them: 64-byte aligned.
#pragma once
#include <cstdint>

namespace qeng::isa::QENG_ISA {

struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

}  // namespace qeng::isa::QENG_ISA
