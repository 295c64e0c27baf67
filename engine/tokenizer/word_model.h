// The models of tokenizer.json that read characters rather than bytes: BPE (Llama 2, Mistral, Gemma), Unigram (Kudo
// 2018, arXiv 1804.10959), WordPiece and WordLevel. Each turns one piece of a text into ids as Hugging Face's
// tokenizers do.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace qeng {

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using Ids = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

class WordModel {
 public:
  virtual ~WordModel() = default;
  // Appends the ids of a piece, valid UTF-8 and not empty. Error("value") where it has no token and there is no unknown
  // one.
  virtual void encode(std::string_view piece, std::vector<int32_t>& ids) const = 0;

  Ids ids;                   // by spelling
  std::string suffix;        // BPE: of the last characters of words ("</w>")
  std::string continuation;  // WordPiece: in front of what goes on with a word ("##")
};

// model: the JSON of "model". Error("unsupported") | Error("format"), naming path.
std::unique_ptr<WordModel> make_word_model(const std::string& path, const nlohmann::json& model);
// The byte that "<0x0A>" spells, or -1.
int byte_of_spelling(std::string_view spelling);

}  // namespace qeng
