#include "engine/tokenizer/word_model.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/unicode.h"
#include "kernels/error.h"

namespace qeng {
namespace {

using nlohmann::json;

constexpr int64_t kMaxId = 1 << 22;  // as for byte-level vocabularies

const json kNull;
const json& member(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}
bool flag(const json& model, const char* key) { return member(model, key) == true; }
std::string text_of(const json& model, const char* key) {
  const json& value = member(model, key);
  return value.is_string() ? value.get<std::string>() : "";
}

std::string spelling_of_byte(uint8_t byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + ">";
}

size_t character(std::string_view text, size_t at) {
  uint32_t code;
  return static_cast<size_t>(decode_utf8(text.data() + at, code));
}

// What models share: the unknown token, and bytes in its place.
class Model : public WordModel {
 protected:
  Model(const std::string& path, const json& model) : path_(path) {
    const json& vocab = model.at("vocab");
    if (vocab.is_object())
      for (const auto& [spelling, id] : vocab.items()) {
        if (!id.is_number_integer() || id < 0 || id > kMaxId) fail("format", path, ": token id ", id.dump());
        ids.emplace(spelling, id.get<int32_t>());
      }
  }
  void set_unknown(const json& model) {
    const std::string name = text_of(model, "unk_token");
    if (name.empty()) return;
    const auto found = ids.find(name);
    if (found == ids.end()) fail("format", path_, ": model.unk_token ", name, " is not in its vocabulary");
    unknown_ = found->second;
  }
  void find_bytes() {
    for (int byte = 0; byte < 256; ++byte) {
      const auto found = ids.find(spelling_of_byte(static_cast<uint8_t>(byte)));
      bytes_[byte] = found == ids.end() ? -1 : found->second;
    }
    byte_fallback_ = true;
  }
  // The tokens of text's bytes; false, and none appended, where one of them has no token.
  bool fall_back(std::string_view text, std::vector<int32_t>& made) const {
    if (!byte_fallback_) return false;
    for (const char c : text)
      if (bytes_[static_cast<uint8_t>(c)] < 0) return false;
    for (const char c : text) made.push_back(bytes_[static_cast<uint8_t>(c)]);
    return true;
  }
  int32_t unknown(std::string_view text) const {
    if (!unknown_)
      fail("value", path_, ": no token for \"", text,
           "\", and no unknown token: this model cannot be given such a text");
    return *unknown_;
  }

  const std::string path_;
  std::optional<int32_t> unknown_;
  bool byte_fallback_ = false;
  int32_t bytes_[256] = {};
};

class CharacterBpe final : public Model {
 public:
  CharacterBpe(const std::string& path, const json& model)
      : Model(path, model),
        fuse_(flag(model, "fuse_unk")),
        whole_(flag(model, "ignore_merges")),
        bpe_(kNoBytes, model.at("merges").size()) {
    set_unknown(model);
    if (flag(model, "byte_fallback")) find_bytes();
    suffix = text_of(model, "end_of_word_suffix");
    if (!text_of(model, "continuing_subword_prefix").empty())
      fail("unsupported", path, ": model.continuing_subword_prefix of BPE");
    if (const json& dropout = member(model, "dropout"); !dropout.is_null() && dropout != 0.0)
      fail("unsupported", path, ": model.dropout ", dropout.dump());
    int32_t rank = 0;
    for (const json& merge : model.at("merges")) {
      std::string left, right;  // "a b" or ["a", "b"]
      if (merge.is_array() && merge.size() == 2) {
        left = merge[0].get<std::string>(), right = merge[1].get<std::string>();
      } else {
        const std::string both = merge.get<std::string>();
        const size_t space = both.find(' ');
        if (space == std::string::npos) fail("format", path, ": merge ", merge.dump(), " is not two tokens");
        left = both.substr(0, space), right = both.substr(space + 1);
      }
      const auto a = ids.find(left), b = ids.find(right), joined = ids.find(left + right);
      if (a == ids.end() || b == ids.end() || joined == ids.end())
        fail("format", path, ": merge ", merge.dump(), " names a token that the vocabulary lacks");
      bpe_.add_merge(a->second, b->second, {rank++, joined->second});
    }
  }

  void encode(std::string_view piece, std::vector<int32_t>& made) const override {
    if (whole_)
      if (const auto found = ids.find(std::string(piece) + suffix); found != ids.end())
        return made.push_back(found->second);
    std::vector<int32_t> parts;
    bool unknown_before = false;
    for (size_t at = 0, size; at < piece.size(); at += size) {
      size = character(piece, at);
      const std::string_view one = piece.substr(at, size);
      const bool last = !suffix.empty() && at + size == piece.size();
      const auto found = last ? ids.find(std::string(one) + suffix) : ids.find(one);
      const bool missing = found == ids.end();
      if (!missing)
        parts.push_back(found->second);
      else if (fall_back(one, parts))
        unknown_before = false;
      else if (!fuse_ || !unknown_before)
        parts.push_back(unknown(one)), unknown_before = true;
      if (!missing) unknown_before = false;
    }
    bpe_.merge(parts);
    made.insert(made.end(), parts.begin(), parts.end());
  }

 private:
  static constexpr int32_t kNoBytes[256] = {};
  const bool fuse_, whole_;
  Bpe bpe_;
};

// The most probable cut: of all ways to spell the piece, the one whose scores add up to most.
class Unigram final : public Model {
 public:
  Unigram(const std::string& path, const json& model) : Model(path, model) {
    const json& vocab = model.at("vocab");
    if (!vocab.is_array()) fail("format", path, ": model.vocab of Unigram is not a list");
    if (vocab.size() > static_cast<size_t>(kMaxId)) fail("format", path, ": ", vocab.size(), " tokens");
    double least = 0;
    for (const json& entry : vocab) {
      const std::string spelling = entry.at(0);
      ids.emplace(spelling, static_cast<int32_t>(scores_.size()));
      scores_.push_back(entry.at(1).get<double>());
      least = std::min(least, scores_.back());
      add(spelling, static_cast<int32_t>(scores_.size()) - 1);
    }
    unknown_score_ = least - 10;
    if (const json& id = member(model, "unk_id"); id.is_number_integer()) {
      if (id < 0 || id >= scores_.size()) fail("format", path, ": model.unk_id ", id.dump(), " is not a token");
      unknown_ = id.get<int32_t>();
    }
    if (flag(model, "byte_fallback")) find_bytes();
  }

  void encode(std::string_view piece, std::vector<int32_t>& made) const override {
    struct Node {
      double score = 0;
      size_t begin = SIZE_MAX;
      int32_t id = -1;  // -1: unknown
    };
    std::vector<Node> best(piece.size() + 1);
    const auto reach = [&](size_t begin, size_t end, double score, int32_t id) {
      if (Node& node = best[end]; node.begin == SIZE_MAX || score > node.score) node = {score, begin, id};
    };
    for (size_t at = 0; at < piece.size();) {
      const size_t one = character(piece, at);
      bool single = false;
      uint32_t node = 0;
      for (size_t end = at; end < piece.size();) {
        const auto found = children_.find(uint64_t{node} << 8 | static_cast<uint8_t>(piece[end]));
        if (found == children_.end()) break;
        node = found->second, ++end;
        if (const int32_t id = id_of_node_[node]; id >= 0) {
          reach(at, end, best[at].score + scores_[static_cast<size_t>(id)], id);
          single = single || end - at == one;
        }
      }
      if (!single) reach(at, at + one, best[at].score + unknown_score_, -1);
      at += one;
    }
    std::vector<std::pair<size_t, int32_t>> cuts;  // begin and id, from the end
    for (size_t end = piece.size(); end > 0; end = cuts.back().first) {
      const Node& node = best[end];
      const bool joins = unknown_ && !cuts.empty() && is_unknown(node.id) && is_unknown(cuts.back().second);
      if (joins)
        cuts.back() = {node.begin, -1};
      else
        cuts.push_back({node.begin, node.id});
    }
    for (size_t i = cuts.size(); i-- > 0;) {
      const auto [begin, id] = cuts[i];
      const size_t end = i == 0 ? piece.size() : cuts[i - 1].first;
      const std::string_view text = piece.substr(begin, end - begin);
      if (const auto found = ids.find(text); found != ids.end())
        made.push_back(found->second);
      else if (!fall_back(text, made))
        made.push_back(unknown(text));
    }
  }

 private:
  bool is_unknown(int32_t id) const { return id < 0 || id == unknown_; }
  void add(std::string_view spelling, int32_t id) {
    uint32_t node = 0;
    for (const char c : spelling) {
      const auto [place, made] = children_.try_emplace(uint64_t{node} << 8 | static_cast<uint8_t>(c),
                                                       static_cast<uint32_t>(id_of_node_.size()));
      if (made) id_of_node_.push_back(-1);
      node = place->second;
    }
    if (node != 0) id_of_node_[node] = id;  // of tokens spelled alike the last, as there
  }

  std::vector<double> scores_;
  double unknown_score_ = 0;
  std::unordered_map<uint64_t, uint32_t> children_;  // of a trie over bytes: node << 8 | byte
  std::vector<int32_t> id_of_node_ = {-1};
};

class WordPiece final : public Model {
 public:
  WordPiece(const std::string& path, const json& model) : Model(path, model) {
    set_unknown(model);
    continuation = model.value("continuing_subword_prefix", "##");
    longest_ = model.value("max_input_chars_per_word", size_t{100});
  }
  void encode(std::string_view piece, std::vector<int32_t>& made) const override {
    size_t characters = 0;
    for (size_t at = 0; at < piece.size(); at += character(piece, at)) ++characters;
    const size_t before = made.size();
    std::string word;
    for (size_t at = 0; at < piece.size();) {
      size_t end = characters > longest_ ? at : piece.size();
      auto found = ids.end();
      for (; end > at; --end) {
        if (end < piece.size() && (piece[end] & 0xC0) == 0x80) continue;
        word.assign(at ? continuation : "").append(piece.substr(at, end - at));
        if ((found = ids.find(word)) != ids.end()) break;
      }
      if (end == at) {  // the whole word is unknown
        made.resize(before);
        return made.push_back(unknown(piece));
      }
      made.push_back(found->second);
      at = end;
    }
  }

 private:
  size_t longest_ = 100;
};

class WordLevel final : public Model {
 public:
  WordLevel(const std::string& path, const json& model) : Model(path, model) { set_unknown(model); }
  void encode(std::string_view piece, std::vector<int32_t>& made) const override {
    const auto found = ids.find(piece);
    made.push_back(found != ids.end() ? found->second : unknown(piece));
  }
};

}  // namespace

int byte_of_spelling(std::string_view spelling) {
  int byte = -1;
  if (spelling.size() != 6 || !spelling.starts_with("<0x") || spelling.back() != '>') return -1;
  const auto [end, wrong] = std::from_chars(spelling.data() + 3, spelling.data() + 5, byte, 16);
  return wrong == std::errc() && end == spelling.data() + 5 ? byte : -1;
}

std::unique_ptr<WordModel> make_word_model(const std::string& path, const json& model) {
  std::string type = model.value("type", "");
  if (type.empty()) type = model.contains("merges") ? "BPE" : model.contains("unk_id") ? "Unigram" : "WordPiece";
  if (type == "BPE") return std::make_unique<CharacterBpe>(path, model);
  if (type == "Unigram") return std::make_unique<Unigram>(path, model);
  if (type == "WordPiece") return std::make_unique<WordPiece>(path, model);
  if (type == "WordLevel") return std::make_unique<WordLevel>(path, model);
  fail("unsupported", path, ": model type ", type, "; BPE, Unigram, WordPiece and WordLevel are read");
}

}  // namespace qeng
