// What load_tokenizer puts together: one loader a file format, and the properties that tokenizer_config.json adds.
#pragma once
#include <map>
#include <nlohmann/json.hpp>

#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/vocabulary.h"

namespace qeng {

// config: the object of tokenizer_config.json, or an empty object.
std::shared_ptr<const Tokenizer> load_tokenizer_json(const std::string& path, const nlohmann::json& json,
                                                     const nlohmann::json& config, const std::string& folder);
// tokens: those that files beside the model add to it, or put in place of its own, by id.
std::shared_ptr<const Tokenizer> load_sentencepiece(const std::string& path, const nlohmann::json& config,
                                                    const std::string& folder,
                                                    const std::map<int32_t, AddedToken>& tokens);

// A rank file that one of these models was released with, by its number of ranks; Error("unsupported") for another.
std::shared_ptr<const Tokenizer> load_released_tiktoken(const std::string& path);
TiktokenOptions tiktoken_options(const std::string& path, size_t ranks);
bool is_tiktoken(std::string_view text);  // begins as a rank file does

// From the lists of a GGUF file; control tokens are added to the properties. make_character_bpe: vocabulary.pre is one
// of character_pre_tokenizers(). unknown: the token of what has none.
std::shared_ptr<const Tokenizer> make_sentencepiece(const std::string& path, const Vocabulary& vocabulary,
                                                    TokenizerProperties properties);
std::shared_ptr<const Tokenizer> make_character_bpe(const Gguf& file, const Vocabulary& vocabulary,
                                                    std::optional<int32_t> unknown, TokenizerProperties properties);

// The tokens of tokenizer_config.json's added_tokens_decoder, tokenizer.json's added_tokens and added_tokens.json; of
// an id in several of them, the first's. config, tokenizer: the objects of those two files, or empty ones.
std::map<int32_t, AddedToken> read_folder_tokens(const nlohmann::json& config, const nlohmann::json& tokenizer,
                                                 const std::string& folder);
// [{"id": 32000, "content": "<|im_start|>", "special": true, ...}, ...]
std::vector<AddedToken> read_added_tokens(const std::string& path, const nlohmann::json& list);

// The step that a part of tokenizer.json's pre_tokenizer stands for; none for ByteLevel without its pattern.
// Error("unsupported") for another type.
std::optional<Cutter::Step> step_of(const std::string& path, const nlohmann::json& part);

// One template of those that a model has by name: "tool_use" where tools are given, as transformers chooses, else
// "default"; where there is none for a conversation, rendering it is an error.
std::string join_templates(const std::map<std::string, std::string>& templates);

nlohmann::json read_json(const std::string& path);  // Error("format") unless it holds an object

// bos, eos, pad and the chat template from config and from folder/chat_template.jinja. The tokens must be among
// properties.added; Error("format") otherwise. says_bos: whether config's add_bos_token counts; beside a tokenizer.json
// it does not, as in transformers 5, which goes by the post-processor.
void apply_config(TokenizerProperties& properties, const nlohmann::json& config, const std::string& folder,
                  bool says_bos);

}  // namespace qeng
