// SentencePiece models (Kudo & Richardson 2018, arXiv 1808.06226), through the library of that name.
#include <sentencepiece_processor.h>
#include <xxhash.h>

#include <charconv>
#include <filesystem>

#include "engine/formats/mapped_file.h"
#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/loaders.h"
#include "engine/tokenizer/sentencepiece_proto.h"
#include "kernels/error.h"

namespace qeng {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581, SentencePiece's spelling of a space
// After a model file: normalizer_spec { add_dummy_prefix: false }. Protobuf merges a message that is there twice.
constexpr std::string_view kNoDummyPrefix("\x1A\x02\x18\x00", 4);

void append_piece(const sentencepiece::SentencePieceProcessor& model, int id, TokenBytes& tokens) {
  const std::string& piece = model.IdToPiece(id);
  if (model.IsByte(id) && piece.size() == 6) {  // "<0x0A>"
    int byte = 0;
    std::from_chars(piece.data() + 3, piece.data() + 5, byte, 16);
    char content = static_cast<char>(byte);
    return tokens.append({&content, 1});
  }
  std::string bytes;
  for (size_t at = 0; at < piece.size();) {
    bool space = std::string_view(piece).substr(at).starts_with(kSpace);
    bytes += space ? ' ' : piece[at];
    at += space ? kSpace.size() : 1;
  }
  tokens.append(bytes);
}

std::unique_ptr<sentencepiece::SentencePieceProcessor> load_model(const std::string& path,
                                                                  std::string_view serialized) {
  auto model = std::make_unique<sentencepiece::SentencePieceProcessor>();
  sentencepiece::util::Status status;
  try {
    status = model->LoadFromSerializedProto({serialized.data(), serialized.size()});
  } catch (const std::exception& error) {  // of what the library builds its tables with: an empty piece
    fail("format", path, ": not a SentencePiece model: ", error.what());
  }
  if (!status.ok() || model->GetPieceSize() == 0)
    fail("format", path, ": not a SentencePiece model: ", status.ToString());
  return model;
}

// Each stretch between special tokens is encoded as a text of its own, with the model's leading space if it adds one.
class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(TokenizerProperties properties, TokenBytes bytes, std::string serialized,
                         std::unique_ptr<sentencepiece::SentencePieceProcessor> model)
      : Tokenizer(std::move(properties), std::move(bytes), XXH3_64bits(serialized.data(), serialized.size())),
        serialized_(std::move(serialized)),
        model_(std::move(model)),
        specials_(properties_.added) {
    std::vector<int> ids;
    // A model that writes a space in front of a text encodes "a" and " a" alike; decode takes that space away again.
    adds_space_ = model_->Encode("a", &ids).ok() && !ids.empty() && this->bytes(ids[0]).starts_with(' ');
    if (adds_space_) spaceless_ = load_model(this->name(), serialized_ + std::string(kNoDummyPrefix));
    added_.resize(static_cast<size_t>(vocab_size()));
    for (const AddedToken& token : properties_.added) added_[static_cast<size_t>(token.id)] = true;
  }

  std::string decode(std::span<const int32_t> ids, bool skip_special) const override {
    std::string text = Tokenizer::decode(ids, skip_special);
    bool starts_with_text = !ids.empty() && (skip_special || !is_special(ids[0]));
    return adds_space_ && starts_with_text && text.starts_with(' ') ? text.substr(1) : text;
  }

  Vocabulary vocabulary() const override { return read_sentencepiece_vocabulary(name(), serialized_); }

 protected:
  void encode_valid(std::string_view text, std::vector<int32_t>& ids, bool parse_special, bool goes_on) const override {
    const bool seam = goes_on && spaceless_ && !ids.empty() && !added_[static_cast<size_t>(ids.back())];
    auto encode_text = [&](std::string_view stretch) {
      std::vector<int> pieces;
      const auto& model = seam && stretch.data() == text.data() ? spaceless_ : model_;
      auto status = model->Encode({stretch.data(), stretch.size()}, &pieces);
      if (!status.ok()) fail("internal", name(), ": SentencePiece: ", status.ToString());
      ids.insert(ids.end(), pieces.begin(), pieces.end());
    };
    specials_.split(text, parse_special, encode_text, [&](int32_t id) { ids.push_back(id); });
  }

 private:
  std::string serialized_;
  std::unique_ptr<sentencepiece::SentencePieceProcessor> model_;
  std::unique_ptr<sentencepiece::SentencePieceProcessor> spaceless_;  // where the model writes a space in front
  AddedTokenFinder specials_;
  std::vector<bool> added_;  // by id
  bool adds_space_ = false;
};

// The bytes of all pieces; the given tokens, and control pieces besides, are added to the properties.
TokenBytes read_pieces(const sentencepiece::SentencePieceProcessor& model, const std::map<int32_t, AddedToken>& given,
                       TokenizerProperties& properties) {
  TokenBytes tokens;
  for (int id = 0; id < model.GetPieceSize(); ++id) {
    append_piece(model, id, tokens);
    const auto found = given.find(id);
    if (found != given.end())
      properties.added.push_back(found->second);
    else if (model.IsControl(id) || model.IsUnknown(id))  // "<unk>" is parsed as "<s>" is
      properties.added.push_back({model.IdToPiece(id), id});
  }
  return tokens;
}

}  // namespace

std::shared_ptr<const Tokenizer> load_sentencepiece(const std::string& path, const nlohmann::json& config,
                                                    const std::string& folder,
                                                    const std::map<int32_t, AddedToken>& tokens) {
  std::string serialized(MappedFile::open(path)->text());
  auto model = load_model(path, serialized);  // before any part of it is read as a model's
  if (!tokens.empty()) model = load_model(path, serialized = with_tokens(path, serialized, tokens));
  TokenizerProperties properties;
  properties.name = std::filesystem::path(folder.empty() ? path : folder).filename().string();
  TokenBytes bytes = read_pieces(*model, tokens, properties);
  auto known = [](int id) { return id >= 0 ? std::optional<int32_t>(id) : std::nullopt; };
  properties.bos = known(model->bos_id());
  properties.eos = known(model->eos_id());
  properties.pad = known(model->pad_id());
  properties.add_bos = properties.bos.has_value();
  apply_config(properties, config, folder, true);
  return std::make_shared<SentencePieceTokenizer>(std::move(properties), std::move(bytes), std::move(serialized),
                                                  std::move(model));
}

std::shared_ptr<const Tokenizer> make_sentencepiece(const std::string& path, const Vocabulary& vocabulary,
                                                    TokenizerProperties properties) {
  if (vocabulary.scores.empty()) fail("format", path, ": a llama vocabulary needs tokenizer.ggml.scores");
  std::string serialized = serialize_sentencepiece(vocabulary);
  auto model = load_model(path, serialized);
  std::map<int32_t, AddedToken> found;  // in the text as written, as llama.cpp has it
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id)
    if (vocabulary.types[id] == TokenType::user_defined)
      found[static_cast<int32_t>(id)] = {vocabulary.tokens[id], static_cast<int32_t>(id), false};
  TokenBytes tokens = read_pieces(*model, found, properties);
  return std::make_shared<SentencePieceTokenizer>(std::move(properties), std::move(tokens), std::move(serialized),
                                                  std::move(model));
}

}  // namespace qeng
