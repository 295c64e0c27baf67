#include "engine/tokenizer/save.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/formats/atomic_file.h"
#include "engine/tokenizer/pretokenizer.h"
#include "engine/tokenizer/sentencepiece_proto.h"
#include "engine/tokenizer/vocabulary.h"
#include "kernels/error.h"

namespace qeng {
namespace {

using nlohmann::json;

json byte_level() {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
}

json tokenizer_json(const Vocabulary& vocabulary, const Tokenizer& tokenizer) {
  const PreTokenizer* pre = nullptr;
  for (const PreTokenizer& each : kPreTokenizers)
    if (vocabulary.pre == each.pre) pre = &each;
  if (!pre) fail("unsupported", tokenizer.name(), ": no pre-tokenizer is called ", vocabulary.pre);
  json vocab = json::object(), merges = json::array(), added = json::array();
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i)
    if (vocabulary.types[i] == TokenType::normal) vocab[vocabulary.tokens[i]] = i;
  for (const std::string& merge : vocabulary.merges) {
    const size_t space = merge.find(' ');
    merges.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  for (const AddedToken& token : tokenizer.added_tokens())
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", false},
                     {"lstrip", token.lstrip},
                     {"rstrip", token.rstrip},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  const json split = {{"type", "Split"},
                      {"pattern", {{"Regex", find_grammar(pre->grammar)->pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", pre->nfc ? json{{"type", "NFC"}} : json(nullptr)},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", json::array({split, byte_level()})}}},
          {"post_processor", byte_level()},
          {"decoder", byte_level()},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", pre->ignore_merges},
            {"vocab", std::move(vocab)},
            {"merges", std::move(merges)}}}};
}

}  // namespace

void save_tokenizer(const Tokenizer& tokenizer, const std::string& folder) {
  const Vocabulary vocabulary = tokenizer.vocabulary();
  if (vocabulary.model == "llama")
    write_file_atomically(folder + "/tokenizer.model", serialize_sentencepiece(vocabulary));
  else
    write_file_atomically(folder + "/tokenizer.json", tokenizer_json(vocabulary, tokenizer).dump(1) + "\n");
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
