// GGUF's vocabularies that spell tokens in characters rather than in GPT-2's bytes, each as the tokenizer.json that its
// models have: merges as Gemma does them, or between white space.
#include "engine/tokenizer/loaders.h"
#include "engine/tokenizer/pipeline.h"
#include "engine/tokenizer/unicode.h"
#include "kernels/error.h"

namespace qeng {
namespace {

using nlohmann::json;

constexpr char kSpaceMark[] = "\xE2\x96\x81";  // U+2581

json replace(const char* what, const char* by) {
  return {{"type", "Replace"}, {"pattern", {{"String", what}}}, {"content", by}};
}

std::string with_marks(const std::string& text) {
  std::string made;
  for (const char c : text) c == ' ' ? made += kSpaceMark : made += c;
  return made;
}

}  // namespace

std::shared_ptr<const Tokenizer> make_character_bpe(const Gguf& file, const Vocabulary& vocabulary,
                                                    std::optional<int32_t> unknown, TokenizerProperties properties) {
  // Gemma's merges see the whole text, line ends too; llama.cpp cuts at those first.
  const bool gemma = vocabulary.pre != "whitespace";
  json ids = json::object(), merges = json::array();
  std::string storage;
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const std::string& token = vocabulary.tokens[i];
    const auto id = static_cast<int32_t>(i);
    TokenType type = vocabulary.types[i];
    if (token.empty() || type == TokenType::unused) continue;
    if (valid_utf8(token, storage) != token)
      fail("format", file.path(), ": token ", id, " is not UTF-8, as a vocabulary of characters is");
    // Gemma finds runs of line ends in the text as written, and converters list them as any other token.
    if (gemma && type == TokenType::normal && token.size() > 1 && token.find_first_not_of('\n') == std::string::npos)
      type = TokenType::user_defined;
    if (type == TokenType::control || type == TokenType::user_defined || type == TokenType::unknown)
      properties.added.push_back({token, id, type != TokenType::user_defined});
    ids.emplace(gemma ? with_marks(token) : token, id);  // converters write added tokens with spaces
  }
  for (const std::string& merge : vocabulary.merges) {
    const size_t space = merge.find(' ', 1);
    if (space == std::string::npos || valid_utf8(merge, storage) != merge)
      fail("format", file.path(), ": merge ", merges.size(), " is not two tokens with a space between");
    merges.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  json model = {{"type", "BPE"},
                {"fuse_unk", gemma},
                {"byte_fallback", gemma},
                {"vocab", std::move(ids)},
                {"merges", std::move(merges)}};
  if (unknown) {
    const std::string& token = vocabulary.tokens[static_cast<size_t>(*unknown)];
    model["unk_token"] = gemma ? with_marks(token) : token;
  }
  json made = {{"model", std::move(model)}};
  if (gemma) {
    made["normalizer"] = replace(" ", kSpaceMark);
    made["decoder"] = {{"type", "Sequence"},
                       {"decoders", {replace(kSpaceMark, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}};
  } else {
    made["pre_tokenizer"] = {{"type", "Whitespace"}};
    if (file.flag("tokenizer.ggml.normalizer.lowercase").value_or(false)) made["normalizer"] = {{"type", "Lowercase"}};
    if (file.flag("tokenizer.ggml.normalizer.strip_accents").value_or(false))
      fail("unsupported", file.path(), ": tokenizer.ggml.normalizer.strip_accents of a whitespace vocabulary");
  }
  return make_pipeline(file.path(), made, std::move(properties));
}

}  // namespace qeng
