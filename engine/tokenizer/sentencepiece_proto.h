// The parts of SentencePiece's model file (sentencepiece_model.proto, in protobuf's encoding) that GGUF's lists say
// too.
#pragma once
#include <string>
#include <string_view>

#include "engine/tokenizer/vocabulary.h"

namespace qeng {

// What GGUF can say of a model. Error("unsupported") for a unigram model and for one that normalises.
Vocabulary read_sentencepiece_vocabulary(const std::string& path, std::string_view serialized);

// A model file of a vocabulary: BPE by scores, bytes for what is not in it, no normalisation.
std::string serialize_sentencepiece(const Vocabulary& vocabulary);

}  // namespace qeng
