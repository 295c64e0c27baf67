#include "engine/tokenizer/byte_bpe.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "engine/tokenizer/unicode.h"
#include "kernels/error.h"

namespace qeng {
namespace {

// Nine pieces in ten are short and have been seen before. A direct-mapped table a thread, which tokenizers share.
struct alignas(32) CachedPiece {
  uint64_t low, high;  // up to 15 bytes, zero-padded, and the length in the top byte: never 0 for a piece
  uint32_t owner;      // the tokenizer's serial number and, in the two lowest bits, how many ids there are
  int32_t ids[3];
};
static_assert(sizeof(CachedPiece) == 32, "two to a cache line, none across two");
constexpr int kCacheBits = 16;  // 65536 entries, 2 MiB: with 32768, wikitext's rarer words push each other out
constexpr size_t kCachedPieceBytes = 15;
constexpr size_t kBatch = 64;  // pieces cut before the first is looked up: by then its entry has been fetched
thread_local std::unique_ptr<CachedPiece[]> cache;

// left: bytes that may be read at p.
inline void load_key(const char* p, size_t bytes, size_t left, uint64_t& low, uint64_t& high) {
  uint64_t word[2] = {0, 0};
  if (left >= 16) {
    std::memcpy(word, p, 16);
    if (bytes < 8) {
      word[0] &= (uint64_t{1} << (8 * bytes)) - 1;
      word[1] = 0;
    } else {
      word[1] &= (uint64_t{1} << (8 * (bytes - 8))) - 1;
    }
  } else {
    std::memcpy(word, p, bytes);
  }
  low = word[0];
  high = word[1] | static_cast<uint64_t>(bytes) << 56;
}

std::array<uint32_t, 256> printable_codes() {
  std::array<uint32_t, 256> codes{};
  uint32_t spare = 256;  // bytes that do not print get the code points from here
  for (uint32_t byte = 0; byte < 256; ++byte) {
    bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    codes[byte] = prints ? byte : spare++;
  }
  return codes;
}

uint64_t hash_of(const ByteBpeTokenizer::Text& text, const Bpe& bpe) {
  std::string steps;
  for (const Cutter::Step& step : text.cutter.steps()) {
    if (!steps.empty()) steps += '\0';
    steps += step.pattern;
    if (step.matches != Matches::isolated || step.invert)
      steps += {'\0', static_cast<char>('0' + static_cast<int>(step.matches)), step.invert ? '!' : '-'};
  }
  return XXH3_64bits_withSeed(steps.data(), steps.size(), bpe.hash() + text.nfc + 2 * text.prefix_space);
}

}  // namespace

ByteBpeTokenizer::ByteBpeTokenizer(TokenizerProperties properties, TokenBytes bytes, Bpe bpe, Text text)
    : Tokenizer(std::move(properties), std::move(bytes), hash_of(text, bpe)),
      bpe_(std::move(bpe)),
      text_(std::move(text)) {
  static std::atomic<uint32_t> serials{0};
  serial_ = ++serials & (UINT32_MAX >> 2);
  std::vector<AddedToken> raw, normalized;
  for (AddedToken token : properties_.added) {
    std::string storage;
    if (token.normalized && text_.nfc) token.content = std::string(nfc(token.content, storage));
    (token.normalized ? normalized : raw).push_back(token);
  }
  raw_ = AddedTokenFinder(std::move(raw));
  normalized_ = AddedTokenFinder(std::move(normalized));
}

void ByteBpeTokenizer::encode_valid(std::string_view text, std::vector<int32_t>& ids, bool parse_special,
                                    bool /*goes_on*/) const {
  std::string storage;
  auto add_id = [&](int32_t id) { ids.push_back(id); };
  raw_.split(
      text, parse_special,
      [&](std::string_view stretch) {
        std::string_view normal = text_.nfc ? nfc(stretch, storage) : stretch;
        normalized_.split(
            normal, parse_special, [&](std::string_view part) { encode_stretch(part, ids); }, add_id);
      },
      add_id);
}

void ByteBpeTokenizer::encode_stretch(std::string_view text, std::vector<int32_t>& ids) const {
  std::string spaced;
  if (text_.prefix_space && !text.empty() && text.front() != ' ') text = spaced.assign(" ").append(text);
  uint32_t lengths[kBatch];
  const char* const end = text.data() + text.size();
  if (const Grammar* const grammar = text_.cutter.grammar()) {
    for (const char* p = text.data(); p < end;) {
      const size_t count = grammar->cut(p, end, lengths, kBatch);
      encode_pieces(p, lengths, count, end, ids);
      for (size_t i = 0; i < count; ++i) p += lengths[i];
    }
    return;
  }
  std::vector<std::string_view> pieces;
  text_.cutter.cut(text, pieces);
  for (size_t i = 0; i < pieces.size();) {  // pieces that lie end to end, a batch at a time
    const char* const begin = pieces[i].data();
    const char* next = begin;
    size_t count = 0;
    for (; count < kBatch && i < pieces.size() && pieces[i].data() == next; ++i, ++count) {
      lengths[count] = static_cast<uint32_t>(pieces[i].size());
      next += pieces[i].size();
    }
    encode_pieces(begin, lengths, count, end, ids);
  }
}

// count pieces, at most kBatch, that lie end to end from p; the text ends at `end`.
void ByteBpeTokenizer::encode_pieces(const char* p, const uint32_t* lengths, size_t count, const char* end,
                                     std::vector<int32_t>& ids) const {
  if (!cache) cache.reset(new CachedPiece[size_t{1} << kCacheBits]());
  struct Piece {
    uint64_t low, high;
    CachedPiece* entry;  // nullptr for a piece too long to be cached
  } pieces[kBatch];
  int32_t known[3 * kBatch + 3];  // ids found in the cache since the last that were not

  const char* at = p;
  for (size_t i = 0; i < count; at += lengths[i++]) {
    Piece& piece = pieces[i];
    piece.entry = nullptr;
    if (lengths[i] > kCachedPieceBytes) continue;
    load_key(at, lengths[i], static_cast<size_t>(end - at), piece.low, piece.high);
    uint64_t mixed = (piece.low ^ piece.high * 0xD6E8FEB86659FD93u) * 0x9E3779B97F4A7C15u;
    piece.entry = &cache[(mixed ^ mixed >> 29) >> (64 - kCacheBits)];
    __builtin_prefetch(piece.entry);
  }
  size_t found = 0;
  for (size_t i = 0; i < count; p += lengths[i++]) {
    const Piece& piece = pieces[i];
    CachedPiece* entry = piece.entry;
    if (entry && entry->low == piece.low && entry->high == piece.high && entry->owner >> 2 == serial_) {
      std::memcpy(known + found, entry->ids, sizeof entry->ids);
      found += entry->owner & 3;
      continue;
    }
    ids.insert(ids.end(), known, known + found);
    found = 0;
    size_t before = ids.size();
    bpe_.encode({p, lengths[i]}, bytes_, ids);
    const auto made = ids.begin() + static_cast<ptrdiff_t>(before);
    if (bpe_.lacks_bytes() && std::find(made, ids.end(), -1) != ids.end()) refuse_byte({p, lengths[i]});
    if (!entry || ids.end() - made > 3) continue;
    *entry = {piece.low, piece.high, serial_ << 2 | static_cast<uint32_t>(ids.end() - made), {}};
    std::copy(made, ids.end(), entry->ids);
  }
  ids.insert(ids.end(), known, known + found);
}

void ByteBpeTokenizer::refuse_byte(std::string_view piece) const {
  std::vector<int32_t> id;
  for (const char& byte : piece) {
    id.clear();
    bpe_.encode({&byte, 1}, bytes_, id);
    if (id.front() < 0)
      fail("value", name(), ": no token for byte ", static_cast<int>(static_cast<uint8_t>(byte)), " of \"", piece,
           "\", and no unknown token: this model cannot be given such a text");
  }
  fail("internal", name(), ": no token for a byte of ", piece);
}

Vocabulary ByteBpeTokenizer::vocabulary() const {
  Vocabulary vocabulary{.model = "gpt2"};
  for (const PreTokenizer& each : pre_tokenizers())
    if (vocabulary.pre.empty() && each.nfc == text_.nfc && !text_.prefix_space &&
        each.ignore_merges == bpe_.takes_wholes() && cutter_of(each) == text_.cutter)
      vocabulary.pre = each.pre;
  const auto merges = bpe_.merges();
  if (vocabulary.pre.empty() || (merges.empty() && vocab_size() > 256 + static_cast<int>(properties_.added.size())))
    fail("unsupported", name(), ": GGUF has no words for this tokenizer (it cuts text as ", text_.cutter.description(),
         text_.nfc ? " after NFC" : "", merges.empty() ? ", and merges by ranks" : "",
         "); use the model's tokenizer.json");
  for (int32_t id = 0; id < vocab_size(); ++id) {
    const std::string_view token = bytes(id);
    vocabulary.tokens.push_back(token.empty() ? "[PAD" + std::to_string(id) + "]" : bytes_to_printable(token));
    vocabulary.types.push_back(token.empty() ? TokenType::unused : TokenType::normal);
  }
  for (const AddedToken& token : properties_.added) {
    vocabulary.tokens[static_cast<size_t>(token.id)] = token.content;
    vocabulary.types[static_cast<size_t>(token.id)] = token.special ? TokenType::control : TokenType::user_defined;
  }
  for (const auto& [left, right] : merges)
    vocabulary.merges.push_back(vocabulary.tokens[static_cast<size_t>(left)] + " " +
                                vocabulary.tokens[static_cast<size_t>(right)]);
  return vocabulary;
}

std::string bytes_to_printable(std::string_view bytes) {
  static const std::array<uint32_t, 256> codes = printable_codes();
  std::string printable;
  for (char byte : bytes) append_utf8(codes[static_cast<uint8_t>(byte)], printable);
  return printable;
}

bool printable_to_bytes(std::string_view printable, std::string& bytes) {
  static const std::array<int, 512> byte_of = [] {
    std::array<int, 512> table;
    table.fill(-1);
    std::array<uint32_t, 256> codes = printable_codes();
    for (int byte = 0; byte < 256; ++byte) table[codes[static_cast<size_t>(byte)]] = byte;
    return table;
  }();
  bytes.clear();
  for (size_t at = 0; at < printable.size();) {
    uint32_t code;
    int length = decode_utf8(printable.data() + at, code);
    if (code >= byte_of.size() || byte_of[code] < 0) return false;
    bytes.push_back(static_cast<char>(byte_of[code]));
    at += static_cast<size_t>(length);
  }
  return true;
}

void find_byte_tokens(const TokenBytes& bytes, std::optional<int32_t> unknown, int32_t (&ids)[256]) {
  std::fill(std::begin(ids), std::end(ids), -1);
  for (size_t id = 0; id < bytes.size(); ++id)
    if (bytes[id].size() == 1) {
      int32_t& known = ids[static_cast<uint8_t>(bytes[id][0])];
      if (known < 0) known = static_cast<int32_t>(id);
    }
  for (int32_t& id : ids)
    if (id < 0) id = unknown.value_or(-1);
}

}  // namespace qeng
