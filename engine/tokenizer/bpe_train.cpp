#include "engine/tokenizer/bpe_train.h"

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "engine/formats/atomic_file.h"
#include "engine/tokenizer/byte_bpe.h"
#include "engine/tokenizer/unicode.h"
#include "kernels/error.h"

namespace qeng {
namespace {

using nlohmann::json;
using Pair = std::pair<int32_t, int32_t>;

struct Word {
  std::vector<int32_t> ids;
  int64_t count;
};

struct PairHash {
  size_t operator()(Pair pair) const {
    return static_cast<size_t>((static_cast<uint64_t>(pair.first) << 32 | static_cast<uint32_t>(pair.second)) *
                               0x9E3779B97F4A7C15u);
  }
};

struct PairCount {
  int64_t count = 0;
  std::vector<size_t> words;  // those that contain the pair, or did; ascending within each merge
};

class Trainer {
 public:
  explicit Trainer(const std::vector<std::string>& texts) {
    const Grammar& grammar = *find_grammar("qwen2");
    std::map<std::string, int64_t> counts;
    for (const std::string& text : texts) {
      std::string valid_storage, nfc_storage;
      std::string_view rest = nfc(valid_utf8(text, valid_storage), nfc_storage);
      while (!rest.empty()) {
        uint32_t bytes;
        grammar.cut(rest.data(), rest.data() + rest.size(), &bytes, 1);
        ++counts[std::string(rest.substr(0, bytes))];
        rest.remove_prefix(bytes);
      }
    }
    for (int byte = 0; byte < 256; ++byte) tokens.push_back(std::string(1, static_cast<char>(byte)));
    for (const auto& [piece, count] : counts) {
      Word word{{}, count};
      for (char byte : piece) word.ids.push_back(static_cast<uint8_t>(byte));
      words_.push_back(std::move(word));
      count_pairs(words_.size() - 1, +1, -1);
    }
  }

  // False when no pair occurs twice. Different pairs can spell one token ("a"+"bc", "ab"+"c"): it keeps its first id.
  bool merge_best() {
    auto best = pairs_.end();
    for (auto pair = pairs_.begin(); pair != pairs_.end(); ++pair)
      if (best == pairs_.end() || pair->second.count > best->second.count ||
          (pair->second.count == best->second.count && pair->first < best->first))
        best = pair;
    if (best == pairs_.end() || best->second.count < 2) return false;
    auto [left, right] = best->first;
    std::string token = tokens[static_cast<size_t>(left)] + tokens[static_cast<size_t>(right)];
    auto [known, fresh] = id_of_.emplace(token, static_cast<int32_t>(tokens.size()));
    if (fresh) tokens.push_back(token);
    merges.push_back({left, right});
    std::vector<size_t> words = std::move(best->second.words);
    for (size_t index : words) replace(index, left, right, known->second);
    return true;
  }

  std::vector<std::string> tokens;
  std::vector<Pair> merges;

 private:
  // Adds or takes away the pairs of a word. Pairs without `fresh` already know that the word holds them (-1: none do).
  void count_pairs(size_t index, int64_t sign, int32_t fresh) {
    const Word& word = words_[index];
    for (size_t i = 0; i + 1 < word.ids.size(); ++i) {
      Pair key{word.ids[i], word.ids[i + 1]};
      auto pair = pairs_.try_emplace(key).first;
      PairCount& known = pair->second;
      known.count += sign * word.count;
      bool is_fresh = fresh < 0 || key.first == fresh || key.second == fresh;
      if (sign > 0 && is_fresh && (known.words.empty() || known.words.back() != index)) known.words.push_back(index);
    }
  }

  void replace(size_t index, int32_t left, int32_t right, int32_t joined) {
    std::vector<int32_t>& ids = words_[index].ids;
    auto holds = [&](size_t i) { return i + 1 < ids.size() && ids[i] == left && ids[i + 1] == right; };
    size_t first = 0;
    while (first + 1 < ids.size() && !holds(first)) ++first;
    if (first + 1 >= ids.size()) return;
    count_pairs(index, -1, joined);
    size_t kept = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      bool here = holds(i);
      ids[kept++] = here ? joined : ids[i];
      i += here;
    }
    ids.resize(kept);
    count_pairs(index, +1, joined);
  }

  std::vector<Word> words_;
  std::unordered_map<Pair, PairCount, PairHash> pairs_;
  std::unordered_map<std::string, int32_t> id_of_;
};

}  // namespace

int train_bpe(const std::vector<std::string>& texts, int vocab_size, const std::vector<std::string>& specials,
              const std::string& tokenizer_json) {
  size_t room = vocab_size < 0 ? 0 : static_cast<size_t>(vocab_size);
  if (room < 256 + specials.size())
    fail("value", "train_bpe: vocab_size ", vocab_size, " is less than 256 bytes and ", specials.size(),
         " special tokens");
  Trainer trainer(texts);
  while (trainer.tokens.size() + specials.size() < room && trainer.merge_best()) {
  }

  json vocab = json::object(), merges = json::array(), added = json::array();
  for (size_t id = 0; id < trainer.tokens.size(); ++id) vocab[bytes_to_printable(trainer.tokens[id])] = id;
  for (auto [left, right] : trainer.merges)
    merges.push_back({bytes_to_printable(trainer.tokens[static_cast<size_t>(left)]),
                      bytes_to_printable(trainer.tokens[static_cast<size_t>(right)])});
  size_t next = trainer.tokens.size();
  for (const std::string& special : specials)
    added.push_back({{"id", next++},
                     {"content", special},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  json split = {{"type", "Split"},
                {"pattern", {{"Regex", find_grammar("qwen2")->pattern}}},
                {"behavior", "Isolated"},
                {"invert", false}};
  json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  json model = {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"ignore_merges", false},
                {"vocab", vocab},
                {"merges", merges}};
  json file = {{"version", "1.0"},
               {"truncation", nullptr},
               {"padding", nullptr},
               {"added_tokens", added},
               {"normalizer", {{"type", "NFC"}}},
               {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", json::array({split, byte_level})}}},
               {"post_processor", byte_level},
               {"decoder", byte_level},
               {"model", model}};
  write_file_atomically(tokenizer_json, file.dump(1) + "\n");
  return static_cast<int>(next);
}

}  // namespace qeng
