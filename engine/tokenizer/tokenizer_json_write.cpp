#include "engine/tokenizer/tokenizer_json_write.h"

namespace qeng {

using nlohmann::json;

json tokenizer_json(ByteLevelBpe tokenizer) {
  json added = json::array();
  for (const AddedToken& token : tokenizer.added)
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", false},
                     {"lstrip", token.lstrip},
                     {"rstrip", token.rstrip},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  json steps = json::array();
  for (const std::string& pattern : tokenizer.patterns)
    steps.push_back({{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  steps.push_back(byte_level);
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", tokenizer.nfc ? json{{"type", "NFC"}} : json(nullptr)},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}}},
          {"post_processor", byte_level},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", tokenizer.ignore_merges},
            {"vocab", std::move(tokenizer.vocab)},
            {"merges", std::move(tokenizer.merges)}}}};
}

}  // namespace qeng
