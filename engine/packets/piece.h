// Documents, or pieces of them, from frames as stored to the slots of a batch. The frames were checked before
// (PacketFile::check), so that nothing here can fail.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace qeng {

struct RecordInfo {
  uint32_t tokens = 0, loss_tokens = 0;  // no tokens: a payload
  uint16_t frames = 0;
  uint8_t src = 0, dst = 0;
  bool masked = false;  // has a loss mask; otherwise every token is a target
};

// Whether a part of the document is only read (a conversation), so that not all but its first token is a target.
inline bool trained_in_part(const RecordInfo& info) { return info.loss_tokens + 1 < info.tokens; }

struct PieceSlots {  // as many of each as the piece has tokens
  int32_t *tokens, *targets, *positions;
};
struct PieceCounts {
  uint32_t trained = 0;  // targets that are not -1
  uint32_t largest = 0;  // token, read as unsigned: a negative one is over every vocabulary
};

// Tokens [begin, begin + tokens) of the document: targets[t] = tokens[t + 1] where that is of the piece and a target,
// else -1; positions count from 0.
PieceCounts lay_piece(std::span<const uint8_t> stored, const RecordInfo& info, uint32_t begin, uint32_t tokens,
                      PieceSlots slots);

bool is_target(std::span<const uint8_t> stored, const RecordInfo& info, uint32_t token);  // by the mask alone

// How many of bits [first, first + count) are set, least significant first in each byte.
uint32_t count_bits(const uint8_t* bits, size_t first, size_t count);

// A whole document: its tokens, and its mask with one byte a token (nothing where there is no mask).
void decode_document(std::span<const uint8_t> stored, const RecordInfo& info, std::vector<int32_t>& tokens,
                     std::vector<uint8_t>& mask);

}  // namespace qeng
