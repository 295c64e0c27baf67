// Learns a small byte-level BPE vocabulary from texts, for models trained from scratch on little data.
#pragma once
#include <string>
#include <vector>

namespace qeng {

// Writes a tokenizer.json that load_tokenizer and Hugging Face tokenizers read: normal form C, the Qwen2 pieces, all
// 256 bytes (ids 0 .. 255), the most frequent merges (ties: the pair with the lower ids), and then the specials,
// vocab_size ids in all; fewer where no pair occurs twice. Counts are kept up to date from merge to merge; the best
// pair is found by looking through all: meant for a few thousand tokens and some megabytes. Error("value") if
// vocab_size leaves no room for bytes and specials. Returns the number of ids.
int train_bpe(const std::vector<std::string>& texts, int vocab_size, const std::vector<std::string>& specials,
              const std::string& tokenizer_json);

}  // namespace qeng
