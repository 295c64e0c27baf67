#include "engine/tokenizer/cutter.h"

#include <algorithm>

#include "engine/tokenizer/unicode.h"

namespace qeng {
namespace {

// A stretch of a text that is a match, or lies between two.
struct Stretch {
  size_t begin, end;
  bool match;
};

// The whole text as stretches. An empty match cuts too, but not where the last match ended.
void find_stretches(const Pattern& pattern, std::string_view text, std::vector<Stretch>& stretches) {
  stretches.clear();
  size_t done = 0, from = 0, begin = 0, end = 0;
  bool matched = false;
  while (from <= text.size() && pattern.find(text, from, begin, end)) {
    if (begin == end && matched && begin == done) {
      uint32_t code;
      from =
          begin < text.size() ? begin + static_cast<size_t>(decode_utf8(text.data() + begin, code)) : text.size() + 1;
      continue;
    }
    if (done < begin) stretches.push_back({done, begin, false});
    stretches.push_back({begin, end, true});
    done = from = end, matched = true;
  }
  if (done < text.size()) stretches.push_back({done, text.size(), false});
}

// As Hugging Face's tokenizers join stretches (NormalizedString::split).
void join(std::vector<Stretch>& stretches, Matches matches) {
  std::vector<Stretch> joined;
  bool last = false;
  const auto add = [&](const Stretch& stretch, bool to_last) {
    if (to_last && !joined.empty()) {
      joined.back().begin = std::min(joined.back().begin, stretch.begin);
      joined.back().end = std::max(joined.back().end, stretch.end);
    } else {
      joined.push_back(stretch);
    }
    last = stretch.match;
  };
  switch (matches) {
    case Matches::isolated: return;
    case Matches::removed: std::erase_if(stretches, [](const Stretch& stretch) { return stretch.match; }); return;
    case Matches::contiguous:
      for (const Stretch& stretch : stretches) add(stretch, stretch.match == last);
      break;
    case Matches::merged_with_previous:
      for (const Stretch& stretch : stretches) add(stretch, stretch.match && !last);
      break;
    case Matches::merged_with_next:
      for (auto stretch = stretches.rbegin(); stretch != stretches.rend(); ++stretch)
        add(*stretch, stretch->match && !last);
      std::reverse(joined.begin(), joined.end());
      break;
  }
  stretches.swap(joined);
}

}  // namespace

Cutter::Cutter(std::vector<Step> steps) : steps_(std::move(steps)) {
  bool plain = true;
  std::vector<std::string_view> texts;
  for (const Step& step : steps_) {
    plain = plain && step.matches == Matches::isolated && !step.invert;
    texts.push_back(step.pattern);
  }
  if (plain) grammar_ = find_grammar_by_patterns(texts);
  if (grammar_) return;
  for (const Step& step : steps_) patterns_.emplace_back(step.pattern);
}

Cutter::Cutter(const Grammar& grammar) : grammar_(&grammar) {
  if (grammar.first) steps_.push_back({grammar.first});
  steps_.push_back({grammar.pattern});
}

bool Cutter::operator==(const Cutter& other) const {
  if (grammar_ || other.grammar_) return grammar_ && other.grammar_ && grammar_->cut == other.grammar_->cut;
  if (steps_.size() != other.steps_.size()) return false;
  for (size_t i = 0; i < steps_.size(); ++i)
    if (steps_[i].pattern != other.steps_[i].pattern || steps_[i].matches != other.steps_[i].matches ||
        steps_[i].invert != other.steps_[i].invert)
      return false;
  return true;
}

std::vector<std::string> Cutter::patterns() const {
  std::vector<std::string> patterns;
  for (const Step& step : steps_) patterns.push_back(step.pattern);
  return patterns;
}

std::string Cutter::description() const {
  if (grammar_) return grammar_->name;
  std::string text;
  for (const Step& step : steps_) text += (text.empty() ? "" : ", then ") + step.pattern;
  return text;
}

void Cutter::cut(std::string_view text, std::vector<std::string_view>& pieces) const {
  pieces.assign(1, text);
  std::vector<std::string_view> before;
  std::vector<Stretch> stretches;
  for (size_t i = 0; i < patterns_.size(); ++i) {
    before.swap(pieces);
    pieces.clear();
    for (const std::string_view piece : before) {
      find_stretches(patterns_[i], piece, stretches);
      if (steps_[i].invert)
        for (Stretch& stretch : stretches) stretch.match = !stretch.match;
      join(stretches, steps_[i].matches);
      for (const Stretch& stretch : stretches)
        if (stretch.begin < stretch.end) pieces.push_back(piece.substr(stretch.begin, stretch.end - stretch.begin));
    }
  }
}

void Cutter::cut_any(std::string_view text, std::vector<std::string_view>& pieces) const {
  if (!grammar_) return cut(text, pieces);
  uint32_t lengths[64];
  pieces.clear();
  for (const char *p = text.data(), *const end = p + text.size(); p < end;)
    for (size_t i = 0, count = grammar_->cut(p, end, lengths, 64); i < count; p += lengths[i++])
      pieces.emplace_back(p, lengths[i]);
}

}  // namespace qeng
