// The tokenizer.json of a byte-level BPE tokenizer, as load_tokenizer and Hugging Face tokenizers read it
// (tokenizer_json.cpp reads it back).
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace qeng {

struct ByteLevelBpe {
  nlohmann::json vocab;   // {"printable token": id}, without added tokens
  nlohmann::json merges;  // [["left", "right"]...] by rank
  std::vector<AddedToken> added;
  std::vector<std::string> patterns;  // each cuts the pieces of the one before
  bool nfc = false, ignore_merges = false;
  std::string bos;  // the added token that stands before a text, "" for none
};
nlohmann::json tokenizer_json(ByteLevelBpe tokenizer);

}  // namespace qeng
