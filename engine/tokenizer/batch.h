// Many texts to token ids, and back, on several threads.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace qeng {

// The ids of documents end to end: document i is ids[starts[i] .. starts[i + 1]), as cu_seqlens has it.
struct TokenBatch {
  std::vector<int32_t> ids;
  std::vector<int64_t> starts = {0};
  size_t size() const { return starts.size() - 1; }
  std::span<const int32_t> operator[](size_t i) const {
    return std::span(ids).subspan(static_cast<size_t>(starts[i]), static_cast<size_t>(starts[i + 1] - starts[i]));
  }
};

// As Tokenizer::encode of each text, and Tokenizer::decode of each document; threads: 0 for the cores this process may
// use. The result does not depend on it. An error of any document is thrown.
TokenBatch encode_batch(const Tokenizer& tokenizer, std::span<const std::string_view> texts, bool parse_special,
                        int threads = 0);
std::vector<std::string> decode_batch(const Tokenizer& tokenizer, const TokenBatch& batch, bool skip_special,
                                      int threads = 0);

}  // namespace qeng
