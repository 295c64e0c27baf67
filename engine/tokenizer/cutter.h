// How a text is cut into the pieces that merging never crosses: steps, each of which cuts the pieces of the one before.
// Where the steps are a grammar that pretokenizer.h knows, its hand-written scanner does the work.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/pattern.h"
#include "engine/tokenizer/pretokenizer.h"

namespace qeng {

// What becomes of a match, as in Hugging Face's Split.
enum class Matches { isolated, removed, merged_with_previous, merged_with_next, contiguous };

class Cutter {
 public:
  struct Step {
    std::string pattern;
    Matches matches = Matches::isolated;
    bool invert = false;  // what lies between matches is the match
  };
  // Error("unsupported") for a pattern that is not read.
  explicit Cutter(std::vector<Step> steps);
  explicit Cutter(const Grammar& grammar);

  const Grammar* grammar() const { return grammar_; }  // nullptr: by patterns
  const std::vector<Step>& steps() const { return steps_; }
  std::vector<std::string> patterns() const;  // of the steps
  // Whether both cut every text alike; false where that is not known.
  bool operator==(const Cutter& other) const;
  std::string description() const;  // for messages

  // The pieces of text, in order; empty ones are left out. For cutters without a grammar.
  void cut(std::string_view text, std::vector<std::string_view>& pieces) const;
  void cut_any(std::string_view text, std::vector<std::string_view>& pieces) const;  // for all of them

 private:
  const Grammar* grammar_ = nullptr;
  std::vector<Step> steps_;
  std::vector<Pattern> patterns_;
};

}  // namespace qeng
