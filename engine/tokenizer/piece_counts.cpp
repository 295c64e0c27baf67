#include "engine/tokenizer/piece_counts.h"

#include <xxhash.h>

#include "engine/tokenizer/unicode.h"
#include "kernels/error.h"
#include "kernels/parallel.h"

namespace qeng {
namespace {

constexpr size_t kPart = 1 << 20;  // enough work to be worth handing out, and little enough to balance

bool starts_line(std::string_view text, size_t at) {
  char c = text[at];
  return text[at - 1] == '\n' && ((c >= '0' && c <= '9') || static_cast<uint8_t>((c | 0x20) - 'a') < 26);
}

}  // namespace

size_t PieceCounts::Hash::operator()(std::string_view piece) const { return XXH3_64bits(piece.data(), piece.size()); }

PieceCounts::PieceCounts(const Grammar& grammar, bool nfc, int threads)
    : grammar_(grammar), nfc_(nfc), counts_(static_cast<size_t>(threads > 0 ? threads : available_threads())) {}

void PieceCounts::count(std::string_view text, Counts& counts) const {
  std::string valid_storage, nfc_storage;
  std::string_view normal = valid_utf8(text, valid_storage);
  if (nfc_) normal = qeng::nfc(normal, nfc_storage);
  const char* end = normal.data() + normal.size();
  constexpr size_t kBatch = 256;
  uint32_t lengths[kBatch];
  for (const char* p = normal.data(); p < end;) {
    size_t pieces = grammar_.cut(p, end, lengths, kBatch);
    for (size_t i = 0; i < pieces; p += lengths[i++]) {
      std::string_view piece(p, lengths[i]);
      auto known = counts.find(piece);
      if (known == counts.end()) known = counts.emplace(std::string(piece), 0).first;
      ++known->second;
    }
  }
}

void PieceCounts::add(std::span<const std::string> texts) {
  std::vector<std::string_view> parts;
  for (std::string_view text : texts) {
    bytes_ += static_cast<int64_t>(text.size());
    while (text.size() > kPart) {
      size_t at = kPart;
      while (at < text.size() && !starts_line(text, at)) ++at;
      if (at > INT32_MAX) fail("value", "a text goes on for 2 GB without a line that begins with a letter or digit");
      parts.push_back(text.substr(0, at));
      text.remove_prefix(at);
    }
    if (!text.empty()) parts.push_back(text);
  }
  parallel_each(static_cast<int>(counts_.size()), static_cast<int64_t>(parts.size()),
                [&](int64_t i) { count(parts[static_cast<size_t>(i)], counts_[static_cast<size_t>(team_rank())]); });
}

std::map<std::string_view, int64_t> PieceCounts::sorted() const {
  std::map<std::string_view, int64_t> all;
  for (const Counts& counts : counts_)
    for (const auto& [piece, count] : counts) all[piece] += count;
  return all;
}

}  // namespace qeng
