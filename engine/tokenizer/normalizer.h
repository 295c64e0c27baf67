// tokenizer.json's normalizers: what is done to a text before it is cut. NFC, NFD, NFKC, NFKD, Lowercase, StripAccents,
// Strip, Prepend, Replace, BertNormalizer, Precompiled (SentencePiece's table of replacements) and sequences of them.
#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace qeng {

class Normalizer {
 public:
  Normalizer() = default;
  // part: the JSON of "normalizer", or null. Error("unsupported") | Error("format"), naming path and the part.
  Normalizer(const std::string& path, const nlohmann::json& part);
  // text: valid UTF-8. prepend = false leaves Prepend out, where the text goes on from another.
  std::string operator()(std::string_view text, bool prepend = true) const;
  bool prepends() const { return prepends_; }

 private:
  using Step = std::function<void(std::string& text, bool prepend)>;
  void add(const std::string& path, const nlohmann::json& part, int depth);
  std::vector<Step> steps_;
  bool prepends_ = false;
};

}  // namespace qeng
