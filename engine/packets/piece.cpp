#include "engine/packets/piece.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/math/packets.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace qeng {
namespace {

uint32_t big32(const uint8_t* p) {
  uint32_t value;
  std::memcpy(&value, p, 4);
  return __builtin_bswap32(value);
}

// Tokens in this machine's order from `in` to out, positions from `position` on; returns the largest.
struct Swapped {
  const uint8_t* in;
  int32_t *out, *positions;
  int32_t position;
  uint32_t count;
};
uint32_t swap_plain(const Swapped& s, uint32_t from, uint32_t largest) {
  for (uint32_t i = from; i < s.count; ++i) {
    const uint32_t token = big32(s.in + 4 * size_t{i});
    s.out[i] = static_cast<int32_t>(token);
    s.positions[i] = s.position + static_cast<int32_t>(i);
    largest = std::max(largest, token);
  }
  return largest;
}

// targets[i] = next[i] where bit first + i of `bits` is set, else -1.
struct Masked {
  const uint8_t* bits;
  size_t first;
  const int32_t* next;
  int32_t* targets;
  uint32_t count;
};
void mask_plain(const Masked& m, uint32_t from) {
  for (uint32_t i = from; i < m.count; ++i) {
    const size_t bit = m.first + i;
    m.targets[i] = m.bits[bit / 8] >> (bit % 8) & 1 ? m.next[i] : -1;
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) uint32_t swap_avx2(const Swapped& s) {
  const __m256i reverse = _mm256_setr_epi8(3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12,  //
                                           3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12);
  __m256i position = _mm256_add_epi32(_mm256_set1_epi32(s.position), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  const __m256i eight = _mm256_set1_epi32(8);
  __m256i largest = _mm256_setzero_si256();
  uint32_t i = 0;
  for (; i + 8 <= s.count; i += 8) {
    const __m256i stored = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(s.in + 4 * size_t{i}));
    const __m256i tokens = _mm256_shuffle_epi8(stored, reverse);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(s.out + i), tokens);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(s.positions + i), position);
    position = _mm256_add_epi32(position, eight);
    largest = _mm256_max_epu32(largest, tokens);
  }
  alignas(32) uint32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), largest);
  return swap_plain(s, i, *std::max_element(lanes, lanes + 8));
}

__attribute__((target("avx2"))) void mask_avx2(const Masked& m) {
  const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128), none = _mm256_set1_epi32(-1);
  uint32_t i = 0;
  for (; i + 16 <= m.count; i += 8) {  // 16: the second byte below exists
    const uint8_t* p = m.bits + (m.first + i) / 8;
    const int bits = (p[0] | p[1] << 8) >> ((m.first + i) % 8);
    const __m256i on = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits), lane), lane);
    const __m256i next = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(m.next + i));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(m.targets + i), _mm256_blendv_epi8(none, next, on));
  }
  mask_plain(m, i);
}

const bool has_avx2 = __builtin_cpu_supports("avx2");
uint32_t swap(const Swapped& s) { return has_avx2 ? swap_avx2(s) : swap_plain(s, 0, 0); }
void mask(const Masked& m) { has_avx2 ? mask_avx2(m) : mask_plain(m, 0); }
#else
uint32_t swap(const Swapped& s) { return swap_plain(s, 0, 0); }
void mask(const Masked& m) { mask_plain(m, 0); }
#endif

// Whole words between single bits; compiled twice, so that popcount is an instruction where the processor has it.
__attribute__((always_inline)) inline uint32_t count_words(const uint8_t* bits, size_t first, size_t count) {
  uint32_t total = 0;
  const auto bit = [&](size_t i) { return uint32_t{bits[i / 8]} >> (i % 8) & 1; };
  const size_t end = first + count;
  for (; first < end && first % 8 != 0; ++first) total += bit(first);
  for (; first + 64 <= end; first += 64) {
    uint64_t word;
    std::memcpy(&word, bits + first / 8, 8);
    total += static_cast<uint32_t>(std::popcount(word));
  }
  for (; first < end; ++first) total += bit(first);
  return total;
}
uint32_t count_bits_plain(const uint8_t* bits, size_t first, size_t count) { return count_words(bits, first, count); }
#if defined(__x86_64__)
__attribute__((target("popcnt"))) uint32_t count_bits_popcnt(const uint8_t* bits, size_t first, size_t count) {
  return count_words(bits, first, count);
}
const bool has_popcnt = __builtin_cpu_supports("popcnt");
#else
uint32_t count_bits_popcnt(const uint8_t* bits, size_t first, size_t count) { return count_words(bits, first, count); }
constexpr bool has_popcnt = false;
#endif

constexpr size_t kMaskTokens = size_t{kPacketPayload} * 8;  // of a full mask frame

}  // namespace

uint32_t count_bits(const uint8_t* bits, size_t first, size_t count) {
  return has_popcnt ? count_bits_popcnt(bits, first, count) : count_bits_plain(bits, first, count);
}

bool is_target(std::span<const uint8_t> stored, const RecordInfo& info, uint32_t token) {
  return !info.masked || stored[static_cast<size_t>(packet_mask_byte(info.tokens, token))] >> (token % 8) & 1;
}

PieceCounts lay_piece(std::span<const uint8_t> stored, const RecordInfo& info, uint32_t begin, uint32_t tokens,
                      PieceSlots slots) {
  PieceCounts counts;
  for (uint32_t done = 0; done < tokens;) {  // frame by frame
    const auto in_frame = static_cast<uint32_t>((begin + done) % kPacketTokens);
    const uint32_t count = std::min(tokens - done, static_cast<uint32_t>(kPacketTokens) - in_frame);
    const uint8_t* in = stored.data() + packet_token_byte(begin + done);
    const auto position = static_cast<int32_t>(done);
    counts.largest = std::max(counts.largest, swap({in, slots.tokens + done, slots.positions + done, position, count}));
    done += count;
  }
  slots.targets[tokens - 1] = -1;
  if (!info.masked) {
    std::memcpy(slots.targets, slots.tokens + 1, size_t{tokens - 1} * 4);
    counts.trained = tokens - 1;
    return counts;
  }
  for (uint32_t done = 0; done + 1 < tokens;) {  // token begin + done + 1 says whether it is the target of slot `done`
    const size_t next = size_t{begin} + done + 1, in_frame = next % kMaskTokens;
    const auto count = static_cast<uint32_t>(std::min<size_t>(tokens - 1 - done, kMaskTokens - in_frame));
    const uint8_t* bits = stored.data() + packet_mask_byte(info.tokens, static_cast<int64_t>(next - in_frame));
    mask({bits, in_frame, slots.tokens + done + 1, slots.targets + done, count});
    counts.trained += count_bits(bits, in_frame, count);
    done += count;
  }
  return counts;
}

void decode_document(std::span<const uint8_t> stored, const RecordInfo& info, std::vector<int32_t>& tokens,
                     std::vector<uint8_t>& mask_out) {
  tokens.resize(info.tokens);
  mask_out.resize(info.masked ? info.tokens : 0);
  for (uint32_t done = 0; done < info.tokens; done += static_cast<uint32_t>(kPacketTokens)) {
    const uint32_t count = std::min<uint32_t>(info.tokens - done, static_cast<uint32_t>(kPacketTokens));
    const uint8_t* in = stored.data() + packet_token_byte(done);
    for (uint32_t i = 0; i < count; ++i) tokens[done + i] = static_cast<int32_t>(big32(in + 4 * size_t{i}));
  }
  for (size_t t = 0; t < mask_out.size(); ++t)
    mask_out[t] = stored[static_cast<size_t>(packet_mask_byte(info.tokens, static_cast<int64_t>(t)))] >> (t % 8) & 1;
}

}  // namespace qeng
