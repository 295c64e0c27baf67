#include "engine/tokenizer/batch.h"

#include <algorithm>
#include <exception>

#include "kernels/parallel.h"

namespace qeng {
namespace {

constexpr size_t kGroup = 256;  // documents a thread takes at a time: many short ones, or a few seconds of long ones

// body(group, first, last) for consecutive groups of documents, in parallel; the first group's exception is thrown.
template <class Body>
void each_group(size_t documents, int threads, Body&& body) {
  size_t groups = (documents + kGroup - 1) / kGroup;
  std::vector<std::exception_ptr> errors(groups);
  parallel_each(threads > 0 ? threads : available_threads(), static_cast<int64_t>(groups), [&](int64_t at) {
    size_t group = static_cast<size_t>(at);
    try {
      body(group, group * kGroup, std::min(documents, (group + 1) * kGroup));
    } catch (...) {
      errors[group] = std::current_exception();
    }
  });
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace

TokenBatch encode_batch(const Tokenizer& tokenizer, std::span<const std::string_view> texts, bool parse_special,
                        int threads) {
  TokenBatch batch;
  batch.starts.resize(texts.size() + 1);
  std::vector<std::vector<int32_t>> parts((texts.size() + kGroup - 1) / kGroup);
  each_group(texts.size(), threads, [&](size_t group, size_t first, size_t last) {
    for (size_t i = first; i < last; ++i) {
      tokenizer.encode(texts[i], parts[group], parse_special);
      batch.starts[i + 1] = static_cast<int64_t>(parts[group].size());  // within its group, for now
    }
  });
  size_t total = 0;
  for (const std::vector<int32_t>& part : parts) total += part.size();
  batch.ids.reserve(total);
  for (size_t group = 0; group < parts.size(); ++group) {
    for (size_t i = group * kGroup; i < std::min(texts.size(), (group + 1) * kGroup); ++i)
      batch.starts[i + 1] += static_cast<int64_t>(batch.ids.size());
    batch.ids.insert(batch.ids.end(), parts[group].begin(), parts[group].end());
    parts[group] = {};
  }
  return batch;
}

std::vector<std::string> decode_batch(const Tokenizer& tokenizer, const TokenBatch& batch, bool skip_special,
                                      int threads) {
  std::vector<std::string> texts(batch.size());
  each_group(batch.size(), threads, [&](size_t, size_t first, size_t last) {
    for (size_t i = first; i < last; ++i) texts[i] = tokenizer.decode(batch[i], skip_special);
  });
  return texts;
}

}  // namespace qeng
