#include "kernels/cuda/cuda.h"
#include "kernels/math/packets.h"

namespace qeng {

namespace {

constexpr int kThreads = 256;

// One thread a slot: it looks for the last piece that starts at or before its slot. Some tens of reads of pieces, which
// all threads share, beside 4 bytes of frames and 12 written: a batch is a few hundred kilobytes.
__global__ void __launch_bounds__(kThreads)
    decode_packets(const uint8_t* frames, int64_t bytes, const PacketPiece* pieces, int64_t count, int32_t* tokens,
                   int32_t* targets, int32_t* positions, int64_t slots, int32_t pad, Fault* fault) {
  const int64_t t = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (t >= slots) return;
  int64_t low = 0, high = count;  // pieces before low start at or before t, those from high on start after it
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (pieces[middle].slot <= t)
      low = middle + 1;
    else
      high = middle;
  }
  PacketSlot slot = {pad, -1, 0};
  if (low > 0) {
    const PacketPiece piece = pieces[low - 1];
    if (!packet_piece_fits(piece, slots, bytes))
      report(fault, FaultKind::piece, low - 1, 0, 0);
    else if (t - piece.slot < piece.tokens)
      slot = packet_slot(piece, frames, t - piece.slot);
  }
  tokens[t] = slot.token, targets[t] = slot.target, positions[t] = slot.position;
}

}  // namespace

void run(const DecodePackets& op, CudaContext& context) {
  const int64_t slots = op.tokens.elements();
  QENG_LAUNCH(context, decode_packets, dim3(static_cast<unsigned>(ceil_div(slots, kThreads))), dim3(kThreads), 0,
              op.frames.as<uint8_t>(), op.frames.elements(), op.pieces.as<PacketPiece>(), op.pieces.shape[0],
              op.tokens.as<int32_t>(), op.targets.as<int32_t>(), op.positions.as<int32_t>(), slots, op.pad,
              context.fault);
}

}  // namespace qeng
