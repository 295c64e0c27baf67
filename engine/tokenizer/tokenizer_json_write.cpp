#include "engine/tokenizer/tokenizer_json_write.h"

namespace qeng {

using nlohmann::json;

namespace {
// A bos in front of a text: what transformers goes by, whatever tokenizer_config.json says.
json with_bos(const json& byte_level, const ByteLevelBpe& tokenizer) {
  const auto part = [](const char* kind, const std::string& id, int type) {
    return json{{kind, {{"id", id}, {"type_id", type}}}};
  };
  const json bos = part("SpecialToken", tokenizer.bos, 0), first = part("Sequence", "A", 0);
  json ids = json::array();
  for (const AddedToken& token : tokenizer.added)
    if (token.content == tokenizer.bos) ids.push_back(token.id);
  const json processor = {
      {"type", "TemplateProcessing"},
      {"single", {bos, first}},
      {"pair", {bos, first, part("SpecialToken", tokenizer.bos, 1), part("Sequence", "B", 1)}},
      {"special_tokens", {{tokenizer.bos, {{"id", tokenizer.bos}, {"ids", ids}, {"tokens", {tokenizer.bos}}}}}}};
  return {{"type", "Sequence"}, {"processors", {byte_level, processor}}};
}
}  // namespace

json tokenizer_json(ByteLevelBpe tokenizer) {
  json added = json::array();
  for (const AddedToken& token : tokenizer.added)
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", token.single_word},
                     {"lstrip", token.lstrip},
                     {"rstrip", token.rstrip},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  json steps = json::array();
  for (const std::string& pattern : tokenizer.patterns)
    steps.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  steps.push_back(byte_level);
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", tokenizer.nfc ? json{{"type", "NFC"}} : json(nullptr)},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}}},
          {"post_processor", tokenizer.bos.empty() ? byte_level : with_bos(byte_level, tokenizer)},
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
