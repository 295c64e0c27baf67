#pragma once
#include <string>

#include "engine/tokenizer/tokenizer.h"

namespace qeng {

// Writes tokenizer.json (byte-level BPE) or tokenizer.model (SentencePiece) with tokenizer_config.json into an existing
// folder: what load_tokenizer and Hugging Face read. Error("unsupported") as Tokenizer::vocabulary.
void save_tokenizer(const Tokenizer& tokenizer, const std::string& folder);

}  // namespace qeng
