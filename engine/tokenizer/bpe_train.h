// Learns a byte-level BPE vocabulary from the pieces of texts (Sennrich et al. 2016, arXiv 1508.07909).
#pragma once
#include <string>
#include <vector>

#include "engine/tokenizer/piece_counts.h"

namespace qeng {

// Writes a tokenizer.json that load_tokenizer and Hugging Face tokenizers read: the normal form and the pattern of the
// counts, all 256 bytes (ids 0 .. 255), the most frequent merges (ties: the pair with the lower ids), and then the
// specials, vocab_size ids in all; fewer where no pair occurs twice. The same counts give the same file, whatever the
// threads. Pairs wait in a heap and are recounted when they come to its top: 32,000 merges over tens of megabytes of
// text take seconds. Error("value") if vocab_size leaves no room for bytes and specials. Returns the number of ids.
int train_bpe(const PieceCounts& counts, int vocab_size, const std::vector<std::string>& specials,
              const std::string& path);

}  // namespace qeng
