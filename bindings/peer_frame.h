// Lua's Frame: the data of a frame between peers, or of a block of a file, which may be sent without a copy.
#pragma once
#include <span>

#include "bindings/lua.h"
#include "engine/peers/frame.h"

namespace qeng {

struct HeldFrame {
  std::shared_ptr<const PeerData> data;  // nullptr: there is none
  bool freed = false;

  std::span<const uint8_t> bytes(const char* who) const {
    if (freed) fail("closed", who, ": this frame was freed");
    return data ? std::span<const uint8_t>(data->bytes.get(), data->size) : std::span<const uint8_t>();
  }
};

}  // namespace qeng

QENG_LUA_CLASS(qeng::HeldFrame, "Frame")
