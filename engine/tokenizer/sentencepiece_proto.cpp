#include "engine/tokenizer/sentencepiece_proto.h"

#include <algorithm>
#include <cstring>

#include "kernels/error.h"

namespace qeng {
namespace {

enum Wire : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void put_number(std::string& out, uint64_t field, uint64_t value) {
  put_varint(out, field << 3 | kVarint);
  put_varint(out, value);
}

void put_bytes(std::string& out, uint64_t field, std::string_view bytes) {
  put_varint(out, field << 3 | kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

void put_float(std::string& out, uint64_t field, float value) {
  put_varint(out, field << 3 | kFixed32);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Calls on_field(field, number, bytes) for each field of a message.
template <class OnField>
void read_message(const std::string& path, std::string_view message, OnField on_field) {
  const auto damaged = [&]() { fail("format", path, ": not a SentencePiece model: a field runs past its end"); };
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (message.empty()) damaged();
      const auto byte = static_cast<uint8_t>(message[0]);
      message.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) break;
    }
    return value;
  };
  while (!message.empty()) {
    const uint64_t tag = varint();
    uint64_t number = 0, bytes = 0;
    switch (tag & 7) {
      case kVarint: number = varint(); break;
      case kFixed64: bytes = 8; break;
      case kFixed32: bytes = 4; break;
      case kBytes: bytes = varint(); break;
      default: damaged();
    }
    if (bytes > message.size()) damaged();
    on_field(tag >> 3, number, message.substr(0, bytes));
    message.remove_prefix(bytes);
  }
}

// Field numbers of sentencepiece_model.proto.
enum ModelField : uint64_t { kPieces = 1, kTrainer = 2, kNormalizer = 3 };
enum PieceField : uint64_t { kPiece = 1, kScore = 2, kType = 3 };
enum TrainerField : uint64_t { kModelType = 3, kByteFallback = 35 };
enum NormalizerField : uint64_t {
  kNormalizerName = 1,
  kCharacterMap = 2,
  kDummyPrefix = 3,
  kExtraWhitespaces = 4,
  kEscapeWhitespaces = 5
};
constexpr uint64_t kBpe = 2;  // of ModelType

void put_piece(std::string& model, std::string_view content, float score, TokenType type) {
  std::string piece;
  put_bytes(piece, kPiece, content);
  put_float(piece, kScore, score);
  put_number(piece, kType, static_cast<uint64_t>(type));
  put_bytes(model, kPieces, piece);
}

}  // namespace

Vocabulary read_sentencepiece_vocabulary(const std::string& path, std::string_view serialized) {
  Vocabulary vocabulary{.model = "llama", .pre = "default", .add_space_prefix = true};
  bool bpe = false, normalizes = false, extra_whitespaces = true, escapes = true;  // what the format takes unsaid
  const auto read_piece = [&](uint64_t field, uint64_t number, std::string_view bytes) {
    if (field == kPiece) vocabulary.tokens.back() = bytes;
    if (field == kScore && bytes.size() == 4) std::memcpy(&vocabulary.scores.back(), bytes.data(), 4);
    if (field == kType) vocabulary.types.back() = static_cast<TokenType>(number);
  };
  read_message(path, serialized, [&](uint64_t part, uint64_t, std::string_view message) {
    if (part == kPieces) {
      vocabulary.tokens.emplace_back();
      vocabulary.scores.push_back(0);
      vocabulary.types.push_back(TokenType::normal);
      read_message(path, message, read_piece);
    }
    if (part == kTrainer)
      read_message(path, message, [&](uint64_t field, uint64_t number, std::string_view) {
        if (field == kModelType) bpe = number == kBpe;
      });
    if (part == kNormalizer)
      read_message(path, message, [&](uint64_t field, uint64_t number, std::string_view bytes) {
        if (field == kCharacterMap) normalizes = !bytes.empty();
        if (field == kDummyPrefix) vocabulary.add_space_prefix = number != 0;
        if (field == kExtraWhitespaces) extra_whitespaces = number != 0;
        if (field == kEscapeWhitespaces) escapes = number != 0;
      });
  });
  if (!bpe || normalizes || extra_whitespaces || !escapes)
    fail("unsupported", path, ": GGUF's llama vocabulary is BPE without normalisation, this model ",
         bpe ? "normalises text" : "is not BPE");
  return vocabulary;
}

std::string serialize_sentencepiece(const Vocabulary& vocabulary) {
  std::string model;
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i)  // types have the same numbers in GGUF
    put_piece(model, vocabulary.tokens[i], vocabulary.scores[i], vocabulary.types[i]);
  const bool bytes =
      std::find(vocabulary.types.begin(), vocabulary.types.end(), TokenType::byte) != vocabulary.types.end();
  std::string trainer, normalizer;
  put_number(trainer, kModelType, kBpe);
  put_number(trainer, kByteFallback, bytes);
  put_bytes(model, kTrainer, trainer);
  put_bytes(normalizer, kNormalizerName, "identity");
  put_number(normalizer, kDummyPrefix, vocabulary.add_space_prefix);
  put_number(normalizer, kExtraWhitespaces, 0);
  put_number(normalizer, kEscapeWhitespaces, 1);
  put_bytes(model, kNormalizer, normalizer);
  return model;
}

std::string with_tokens(const std::string& path, std::string_view serialized,
                        const std::map<int32_t, AddedToken>& tokens) {
  constexpr float kScore = -1000;  // what llama.cpp's converter gives them; no merge is decided by it
  std::string model;
  int32_t pieces = 0;
  const auto type_of = [](const AddedToken& token) {
    return token.special ? TokenType::control : TokenType::user_defined;
  };
  read_message(path, serialized, [&](uint64_t part, uint64_t, std::string_view message) {
    if (part != kPieces) return put_bytes(model, part, message);
    std::string_view content;
    TokenType type = TokenType::normal;
    read_message(path, message, [&](uint64_t field, uint64_t number, std::string_view bytes) {
      if (field == kPiece) content = bytes;
      if (field == kType) type = static_cast<TokenType>(number);
    });
    const auto found = tokens.find(pieces++);
    // A model has one unknown piece, and it stays that.
    const bool stays = found == tokens.end() || (found->second.content == content &&
                                                 (type == TokenType::unknown || type == type_of(found->second)));
    if (stays)
      put_bytes(model, kPieces, message);
    else
      put_piece(model, found->second.content, kScore, type_of(found->second));
  });
  for (auto token = tokens.lower_bound(pieces); token != tokens.end(); ++token, ++pieces) {
    for (; pieces < token->first; ++pieces)
      put_piece(model, "<unused" + std::to_string(pieces) + ">", kScore, TokenType::unused);
    put_piece(model, token->second.content, kScore, type_of(token->second));
  }
  return model;
}

}  // namespace qeng
