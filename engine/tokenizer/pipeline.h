// Any tokenizer.json that is not plain byte-level BPE (byte_bpe.h), as a Tokenizer: added tokens, normalizers, then
// pre-tokenizers over pieces of text, then a model of words (word_model.h).
#pragma once
#include "engine/tokenizer/loaders.h"

namespace qeng {

// file: the object of tokenizer.json. properties: with its added tokens. Error("unsupported") | Error("format").
std::shared_ptr<const Tokenizer> make_pipeline(const std::string& path, const nlohmann::json& file,
                                               TokenizerProperties properties);

}  // namespace qeng
