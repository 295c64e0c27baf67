// The parts of SentencePiece's model file (sentencepiece_model.proto, in protobuf's encoding) that GGUF's lists say
// too.
#pragma once
#include <map>
#include <string>
#include <string_view>

#include "engine/tokenizer/vocabulary.h"

namespace qeng {

// What GGUF can say of a model. Error("unsupported") for a unigram model and for one that normalises.
Vocabulary read_sentencepiece_vocabulary(const std::string& path, std::string_view serialized);

// A model file of a vocabulary: BPE by scores, bytes for what is not in it, no normalisation.
std::string serialize_sentencepiece(const Vocabulary& vocabulary);

// The model file with these tokens at their ids: as control pieces (special ones, which text never becomes by itself)
// or user-defined ones, in place of pieces or after the last, where ids between get unused pieces.
std::string with_tokens(const std::string& path, std::string_view serialized,
                        const std::map<int32_t, AddedToken>& tokens);

}  // namespace qeng
