// What load_tokenizer puts together: one loader a file format, and the properties that tokenizer_config.json adds.
#pragma once
#include <nlohmann/json.hpp>

#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/vocabulary.h"

namespace qeng {

// config: the object of tokenizer_config.json, or an empty object.
std::shared_ptr<const Tokenizer> load_tokenizer_json(const std::string& path, const nlohmann::json& json,
                                                     const nlohmann::json& config, const std::string& folder);
std::shared_ptr<const Tokenizer> load_sentencepiece(const std::string& path, const nlohmann::json& config,
                                                    const std::string& folder);

// From the lists of a GGUF file; control tokens are added to the properties.
std::shared_ptr<const Tokenizer> make_sentencepiece(const std::string& path, const Vocabulary& vocabulary,
                                                    TokenizerProperties properties);

nlohmann::json read_json(const std::string& path);  // Error("format") unless it holds an object

// bos, eos, pad and the chat template from config and from folder/chat_template.jinja. The tokens must be among
// properties.added; Error("format") otherwise.
void apply_config(TokenizerProperties& properties, const nlohmann::json& config, const std::string& folder);

}  // namespace qeng
