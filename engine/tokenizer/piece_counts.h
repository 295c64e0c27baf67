// How often each piece of a grammar occurs in texts: what learning a vocabulary needs to know of them.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/tokenizer/pretokenizer.h"

namespace qeng {

class PieceCounts {
 public:
  // nfc: texts are normalised first. threads: 0 for the cores this process may use.
  PieceCounts(const Grammar& grammar, bool nfc, int threads = 0);

  // Counts in parallel. A text over a megabyte is dealt out in parts, cut in front of letters and digits that begin a
  // line, where every grammar cuts. The counts do not depend on the number of threads.
  void add(std::span<const std::string> texts);
  std::map<std::string_view, int64_t> sorted() const;  // lives until the next add
  int64_t bytes() const { return bytes_; }             // of all texts
  const Grammar& grammar() const { return grammar_; }
  bool nfc() const { return nfc_; }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view piece) const;
  };
  using Counts = std::unordered_map<std::string, int64_t, Hash, std::equal_to<>>;
  void count(std::string_view text, Counts& counts) const;

  const Grammar& grammar_;
  const bool nfc_;
  std::vector<Counts> counts_;  // one a thread
  int64_t bytes_ = 0;
};

}  // namespace qeng
