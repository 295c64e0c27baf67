#include "engine/tokenizer/save.h"

#include <nlohmann/json.hpp>

#include "engine/formats/atomic_file.h"
#include "engine/tokenizer/sentencepiece_proto.h"
#include "engine/tokenizer/tokenizer_json_write.h"
#include "engine/tokenizer/vocabulary.h"
#include "kernels/error.h"

namespace qeng {
namespace {

using nlohmann::json;

json byte_level_json(const Vocabulary& vocabulary, const Tokenizer& tokenizer) {
  const PreTokenizer* const pre = find_pre_tokenizer(vocabulary.pre);
  if (!pre) fail("unsupported", tokenizer.name(), ": no pre-tokenizer is called ", vocabulary.pre);
  json vocab = json::object(), merges = json::array();
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i)
    if (vocabulary.types[i] == TokenType::normal) vocab[vocabulary.tokens[i]] = i;
  for (const std::string& merge : vocabulary.merges) {
    const size_t space = merge.find(' ');
    merges.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  return tokenizer_json({.vocab = std::move(vocab),
                         .merges = std::move(merges),
                         .added = tokenizer.added_tokens(),
                         .patterns = cutter_of(*pre).patterns(),
                         .nfc = pre->nfc,
                         .ignore_merges = pre->ignore_merges,
                         .bos = tokenizer.add_bos() ? std::string(tokenizer.bytes(*tokenizer.bos())) : ""});
}

}  // namespace

void save_tokenizer(const Tokenizer& tokenizer, const std::string& folder) {
  const Vocabulary vocabulary = tokenizer.vocabulary();
  if (vocabulary.model == "llama")
    write_file_atomically(folder + "/tokenizer.model", serialize_sentencepiece(vocabulary));
  else
    write_file_atomically(folder + "/tokenizer.json", byte_level_json(vocabulary, tokenizer).dump(1) + "\n");
  json config = {{"add_bos_token", tokenizer.add_bos()}};
  const auto name = [&](const char* key, std::optional<int32_t> id) {
    if (id) config[key] = std::string(tokenizer.bytes(*id));
  };
  name("bos_token", tokenizer.bos());
  name("eos_token", tokenizer.eos());
  name("pad_token", tokenizer.pad());
  if (!tokenizer.chat_template().empty()) config["chat_template"] = tokenizer.chat_template();
  write_file_atomically(folder + "/tokenizer_config.json", config.dump(2) + "\n");
}

}  // namespace qeng
