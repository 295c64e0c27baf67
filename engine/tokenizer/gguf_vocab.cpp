// The tokenizer of a GGUF file.
#include <algorithm>
#include <filesystem>
#include <map>
#include <unordered_map>

#include "engine/tokenizer/byte_bpe.h"
#include "engine/tokenizer/loaders.h"
#include "engine/tokenizer/unicode.h"
#include "engine/tokenizer/vocabulary.h"
#include "kernels/error.h"

namespace qeng {
namespace {

constexpr uint64_t kMaxTokens = 1 << 22;  // as for tokenizer.json

std::string key_of(const char* name) { return std::string("tokenizer.ggml.") + name; }

std::optional<int32_t> token_id(const Gguf& file, const char* name, size_t tokens) {
  const std::string key = key_of(name);
  const std::optional<int64_t> id = file.integer(key);
  if (!id || *id == UINT32_MAX || *id == -1) return std::nullopt;  // both are in use for "none"
  if (*id < 0 || static_cast<uint64_t>(*id) >= tokens)
    fail("format", file.path(), ": ", key, " is ", *id, ", the vocabulary has ", tokens, " tokens");
  return static_cast<int32_t>(*id);
}

Vocabulary read_vocabulary(const Gguf& file) {
  Vocabulary vocabulary;
  vocabulary.model = file.text(key_of("model")).value_or("none");
  const bool characters = vocabulary.model == "gemma4" || vocabulary.model == "whitespace";
  if (!characters && vocabulary.model != "gpt2" && vocabulary.model != "llama")
    fail("unsupported", file.path(), ": tokenizer.ggml.model is ", vocabulary.model,
         vocabulary.model == "none" ? ": the file holds no vocabulary"
                                    : "; gpt2, llama, gemma4 and whitespace are read");
  vocabulary.pre = characters ? vocabulary.model : file.text(key_of("pre")).value_or("");
  const MetadataArray* tokens = file.strings(key_of("tokens"));
  if (!tokens || tokens->count == 0 || tokens->count > kMaxTokens)
    fail("format", file.path(), ": tokenizer.ggml.tokens has ", tokens ? tokens->count : 0, " tokens; expected 1 to ",
         kMaxTokens);
  vocabulary.tokens.assign(tokens->strings.begin(), tokens->strings.end());
  vocabulary.types.assign(tokens->count, TokenType::normal);

  if (const MetadataArray* types = file.numbers(key_of("token_type"))) {
    if (types->count != tokens->count || types->type != MetadataType::i32)
      fail("format", file.path(), ": tokenizer.ggml.token_type has ", types->count, " values of type ",
           metadata_type_name(types->type), ", expected ", tokens->count, " of type i32");
    for (uint64_t i = 0; i < types->count; ++i) {
      const int64_t type = std::get<int64_t>(types->at(i));
      if (type < 1 || type > 6)
        fail("format", file.path(), ": token ", i, " is of type ", type, "; 1 to 6 are defined");
      vocabulary.types[i] = static_cast<TokenType>(type);
    }
  }
  if (const MetadataArray* scores = file.numbers(key_of("scores"))) {
    if (scores->count != tokens->count || scores->type != MetadataType::f32)
      fail("format", file.path(), ": tokenizer.ggml.scores has ", scores->count, " values of type ",
           metadata_type_name(scores->type), ", expected ", tokens->count, " of type f32");
    for (uint64_t i = 0; i < scores->count; ++i)
      vocabulary.scores.push_back(static_cast<float>(std::get<double>(scores->at(i))));
  }
  if (const MetadataArray* merges = file.strings(key_of("merges")))
    vocabulary.merges.assign(merges->strings.begin(), merges->strings.end());
  vocabulary.add_space_prefix = file.flag(key_of("add_space_prefix")).value_or(true);
  return vocabulary;
}

const PreTokenizer& pre_tokenizer(const Gguf& file, const std::string& pre) {
  if (const PreTokenizer* const found = find_pre_tokenizer(pre)) return *found;
  if (const char* const why = why_refused(pre))
    fail("unsupported", file.path(), ": tokenizer.ggml.pre is ", pre, ": ", why,
         ": load the model from its Hugging Face folder");
  std::string known;
  for (const PreTokenizer& each : pre_tokenizers()) known += std::string(each.pre) + ", ";
  for (const char* each : character_pre_tokenizers()) known += std::string(each) + ", ";
  known.resize(known.size() - 2);
  fail("unsupported", file.path(),
       pre.empty() ? ": has no tokenizer.ggml.pre, which says how text is cut" : ": tokenizer.ggml.pre is " + pre,
       "; known are ", known, ": convert the model anew, or load it from its Hugging Face folder");
}

// Merges and bytes by the spelling of tokens.
std::shared_ptr<const Tokenizer> byte_level(const Gguf& file, const Vocabulary& vocabulary, const PreTokenizer& pre,
                                            TokenizerProperties properties) {
  TokenBytes bytes;
  std::unordered_map<std::string_view, int32_t> id_of;
  std::vector<int32_t> normal;
  std::string raw, storage;
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const std::string& token = vocabulary.tokens[i];
    const auto id = static_cast<int32_t>(i);
    const TokenType type = vocabulary.types[i];
    if (type == TokenType::control || type == TokenType::user_defined || type == TokenType::unknown) {
      if (token.empty()) fail("format", file.path(), ": added token ", id, " is empty");
      properties.added.push_back({token, id, type != TokenType::user_defined});
      bytes.append(token);
    } else if (type == TokenType::unused) {
      bytes.append("");
    } else {
      if (valid_utf8(token, storage) != token || !printable_to_bytes(token, raw))
        fail("format", file.path(), ": token ", id, " (", token, ") is not spelled in bytes, as a gpt2 vocabulary is");
      bytes.append(raw);
      normal.push_back(id);
      id_of.emplace(token, id);
    }
  }
  // Models lack bytes that their training text did not have. Their own tokenizers give the unknown token for them.
  const std::optional<int32_t> unknown = token_id(file, "unknown_token_id", vocabulary.tokens.size());
  int32_t byte_ids[256];
  for (int byte = 0; byte < 256; ++byte) {
    const char content = static_cast<char>(byte);
    const auto found = id_of.find(bytes_to_printable({&content, 1}));
    byte_ids[byte] = found != id_of.end() ? found->second : unknown.value_or(-1);
  }
  Bpe bpe(byte_ids, vocabulary.merges.size());
  int32_t rank = 0;
  for (const std::string& merge : vocabulary.merges) {
    const size_t space = merge.find(' ', 1);
    const std::string_view both = merge;
    if (space == std::string::npos)
      fail("format", file.path(), ": merge ", rank, " (", merge, ") is not two tokens with a space between");
    const std::string joined = merge.substr(0, space) + merge.substr(space + 1);
    const auto a = id_of.find(both.substr(0, space)), b = id_of.find(both.substr(space + 1)), c = id_of.find(joined);
    if (a == id_of.end() || b == id_of.end() || c == id_of.end())
      fail("format", file.path(), ": merge ", rank, " (", merge, ") names a token that the vocabulary lacks");
    bpe.add_merge(a->second, b->second, {rank++, c->second});
  }
  if (pre.ignore_merges)
    for (int32_t id : normal)
      if (!bytes[static_cast<size_t>(id)].empty()) bpe.add_whole(bytes, id);
  bpe.finish();
  return std::make_shared<ByteBpeTokenizer>(std::move(properties), std::move(bytes), std::move(bpe),
                                            ByteBpeTokenizer::Text{cutter_of(pre), pre.nfc});
}

}  // namespace

std::shared_ptr<const Tokenizer> load_gguf_tokenizer(const Gguf& file) {
  const Vocabulary vocabulary = read_vocabulary(file);
  TokenizerProperties properties;
  properties.name = std::filesystem::path(file.path()).filename().string();
  properties.bos = token_id(file, "bos_token_id", vocabulary.tokens.size());
  properties.eos = token_id(file, "eos_token_id", vocabulary.tokens.size());
  properties.pad = token_id(file, "padding_token_id", vocabulary.tokens.size());
  std::map<std::string, std::string> templates;
  if (const auto text = file.text("tokenizer.chat_template")) templates["default"] = *text;
  if (const auto text = file.text("tokenizer.chat_template.tool_use")) templates["tool_use"] = *text;
  properties.chat_template = join_templates(templates);
  const bool sentencepiece = vocabulary.model == "llama";
  const std::span<const char* const> labels = character_pre_tokenizers();
  const bool characters = !sentencepiece && std::find(labels.begin(), labels.end(), vocabulary.pre) != labels.end();
  const PreTokenizer* pre = sentencepiece || characters ? nullptr : &pre_tokenizer(file, vocabulary.pre);
  properties.add_bos = file.flag(key_of("add_bos_token")).value_or(sentencepiece || (pre && pre->add_bos));
  if (properties.add_bos && !properties.bos) {
    if (file.flag(key_of("add_bos_token")).value_or(false))
      fail("format", file.path(), ": tokenizer.ggml.add_bos_token is set, but there is no bos_token_id");
    properties.add_bos = false;
  }
  if (sentencepiece) return make_sentencepiece(file.path(), vocabulary, std::move(properties));
  if (characters)
    return make_character_bpe(file, vocabulary, token_id(file, "unknown_token_id", vocabulary.tokens.size()),
                              std::move(properties));
  return byte_level(file, vocabulary, *pre, std::move(properties));
}

}  // namespace qeng
