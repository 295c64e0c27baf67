// Bare frames, by frames and by records, in both CRC variants. Whatever the bytes, each is accounted for:
// it is part of a frame that verified, or it was skipped.
#include <cstdlib>

#include "engine/packets/scanner.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace qeng;
  const std::span<const uint8_t> input(data, size);
  for (CrcVariant variant : {CrcVariant::ccitt_false, CrcVariant::xmodem}) {
    FrameScanner frames(input, variant);
    uint64_t bytes = 0;
    for (Frame frame; frames.next(frame);) bytes += frame.bytes();
    if (bytes + frames.skipped_bytes() != size || frames.position() != size) std::abort();
    if ((frames.skipped_bytes() > 0) != (frames.errors().total > 0)) std::abort();

    RecordScanner records(input, variant);
    for (Record record; records.next(record);)
      if (record.tokens.empty() != (record.type != FrameType::token_ids) ||
          (!record.mask.empty() && record.mask.size() != record.tokens.size()))
        std::abort();
    if (records.errors().total != frames.errors().total) std::abort();
  }
  return 0;
}
