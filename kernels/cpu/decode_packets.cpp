#include <algorithm>

#include "kernels/cpu/cpu.h"
#include "kernels/math/packets.h"

namespace qeng {

void run(const DecodePackets& op, CpuContext& context) {
  const int64_t slots = op.tokens.elements(), count = op.pieces.shape[0];
  const PacketPiece* pieces = op.pieces.as<PacketPiece>();
  for (int64_t p = 0, end = 0; p < count; end = pieces[p].slot + pieces[p].tokens, ++p)
    if (!packet_piece_fits(pieces[p], slots, op.frames.elements()) || pieces[p].slot < end)
      fail("value", op.name, ": piece ", p, " does not fit the slots or the frames");
  int32_t *tokens = op.tokens.as<int32_t>(), *targets = op.targets.as<int32_t>(),
          *positions = op.positions.as<int32_t>();
  parallel_for(context.threads, slots, kGrainElements, [&](int64_t begin, int64_t end) {
    std::fill(tokens + begin, tokens + end, op.pad);
    std::fill(targets + begin, targets + end, -1);
    std::fill(positions + begin, positions + end, 0);
  });
  parallel_for(context.threads, count, 1, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p)
      for (int64_t i = 0; i < pieces[p].tokens; ++i) {
        const PacketSlot slot = packet_slot(pieces[p], op.frames.as<uint8_t>(), i);
        tokens[pieces[p].slot + i] = slot.token;
        targets[pieces[p].slot + i] = slot.target;
        positions[pieces[p].slot + i] = slot.position;
      }
  });
}

}  // namespace qeng
