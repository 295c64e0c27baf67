#include "engine/tokenizer/bpe_train.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <queue>
#include <unordered_map>

#include "engine/formats/atomic_file.h"
#include "engine/tokenizer/byte_bpe.h"
#include "engine/tokenizer/tokenizer_json_write.h"
#include "kernels/error.h"

namespace qeng {
namespace {

using nlohmann::json;

constexpr int64_t kLeastCount = 2;  // a pair that occurs once teaches nothing

struct Word {
  std::vector<int32_t> ids;
  int64_t count;
};

// Two neighbours, the left in the upper half: ordered as (left, right) is.
uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}
struct PairHash {
  size_t operator()(uint64_t pair) const {
    pair *= 0x9E3779B97F4A7C15u;
    return static_cast<size_t>(pair ^ pair >> 32);
  }
};

struct PairCount {
  int64_t count = 0;
  std::vector<uint32_t> words;  // those that contain the pair, or did
};

// A pair's count when it was put in the heap. Counts that have grown are put in again, those that have shrunk are set
// right at the top: so no pair's count is over that of its highest candidate.
struct Candidate {
  int64_t count;
  uint64_t pair;
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Trainer {
 public:
  explicit Trainer(const PieceCounts& counts) {
    for (int byte = 0; byte < 256; ++byte) tokens.push_back(std::string(1, static_cast<char>(byte)));
    for (const auto& [piece, count] : counts.sorted()) {
      Word word{{}, count};
      for (char byte : piece) word.ids.push_back(static_cast<uint8_t>(byte));
      uint32_t index = static_cast<uint32_t>(words_.size());
      for (size_t i = 0; i + 1 < word.ids.size(); ++i) gain(word.ids[i], word.ids[i + 1], count, index);
      words_.push_back(std::move(word));
    }
    queue_gained();
  }

  // False when no pair is left that occurs often enough. Different pairs can spell one token ("a"+"bc", "ab"+"c"): it
  // keeps its first id.
  bool merge_best() {
    while (!queue_.empty()) {
      Candidate top = queue_.top();
      queue_.pop();
      auto found = pairs_.find(top.pair);
      if (found == pairs_.end()) continue;
      if (found->second.count == top.count) {
        merge(top.pair, std::move(found->second.words));
        return true;
      }
      if (found->second.count >= kLeastCount) queue_.push({found->second.count, top.pair});
    }
    return false;
  }

  std::vector<std::string> tokens;
  std::vector<std::pair<int32_t, int32_t>> merges;

 private:
  void gain(int32_t left, int32_t right, int64_t count, uint32_t word) {
    uint64_t key = pair_of(left, right);
    PairCount& pair = pairs_[key];
    pair.count += count;
    if (pair.words.empty() || pair.words.back() != word) pair.words.push_back(word);
    gained_.push_back(key);
  }

  void queue_gained() {
    std::sort(gained_.begin(), gained_.end());
    gained_.erase(std::unique(gained_.begin(), gained_.end()), gained_.end());
    for (uint64_t key : gained_)
      if (int64_t count = pairs_[key].count; count >= kLeastCount) queue_.push({count, key});
    gained_.clear();
  }

  void merge(uint64_t pair, const std::vector<uint32_t>& words) {
    int32_t left = static_cast<int32_t>(pair >> 32), right = static_cast<int32_t>(pair);
    std::string token = tokens[static_cast<size_t>(left)] + tokens[static_cast<size_t>(right)];
    auto [known, fresh] = id_of_.emplace(token, static_cast<int32_t>(tokens.size()));
    if (fresh) tokens.push_back(token);
    merges.push_back({left, right});
    for (uint32_t index : words) replace(index, left, right, known->second);
    pairs_.erase(pair);
    queue_gained();
  }

  // Only pairs that touch a place where the two are joined change their counts.
  void replace(uint32_t index, int32_t left, int32_t right, int32_t joined) {
    Word& word = words_[index];
    std::vector<int32_t>& ids = word.ids;
    before_.assign(ids.size(), false);
    joined_.clear();
    after_.clear();
    for (size_t i = 0; i < ids.size(); ++i) {
      bool here = i + 1 < ids.size() && ids[i] == left && ids[i + 1] == right;
      joined_.push_back(here ? joined : ids[i]);
      after_.push_back(here);
      if (here) before_[i] = before_[i + 1] = true, ++i;
    }
    if (joined_.size() == ids.size()) return;
    for (size_t i = 0; i + 1 < ids.size(); ++i)
      if (before_[i] || before_[i + 1]) pairs_[pair_of(ids[i], ids[i + 1])].count -= word.count;
    for (size_t i = 0; i + 1 < joined_.size(); ++i)
      if (after_[i] || after_[i + 1]) gain(joined_[i], joined_[i + 1], word.count, index);
    ids.assign(joined_.begin(), joined_.end());
  }

  std::vector<Word> words_;
  std::unordered_map<uint64_t, PairCount, PairHash> pairs_;
  std::priority_queue<Candidate> queue_;
  std::unordered_map<std::string, int32_t> id_of_;
  std::vector<uint64_t> gained_;      // pairs whose counts have grown since the heap was last told
  std::vector<int32_t> joined_;       // scratch of replace: the word afterwards,
  std::vector<bool> before_, after_;  // and what is joined: of its ids before, and after
};

}  // namespace

int train_bpe(const PieceCounts& counts, int vocab_size, const std::vector<std::string>& specials,
              const std::string& path) {
  size_t room = vocab_size < 0 ? 0 : static_cast<size_t>(vocab_size);
  if (room < 256 + specials.size())
    fail("value", "train_bpe: vocab_size ", vocab_size, " is less than 256 bytes and ", specials.size(),
         " special tokens");
  Trainer trainer(counts);
  while (trainer.tokens.size() + specials.size() < room && trainer.merge_best()) {
  }

  ByteLevelBpe learned{.vocab = json::object(),
                       .merges = json::array(),
                       .patterns = Cutter(counts.grammar()).patterns(),
                       .nfc = counts.nfc()};
  const auto spelled = [&](int32_t id) { return bytes_to_printable(trainer.tokens[static_cast<size_t>(id)]); };
  for (size_t id = 0; id < trainer.tokens.size(); ++id) learned.vocab[bytes_to_printable(trainer.tokens[id])] = id;
  for (auto [left, right] : trainer.merges) learned.merges.push_back({spelled(left), spelled(right)});
  auto next = static_cast<int32_t>(trainer.tokens.size());
  for (const std::string& special : specials) learned.added.push_back({.content = special, .id = next++});
  write_file_atomically(path, tokenizer_json(std::move(learned)).dump(1) + "\n");
  return next;
}

}  // namespace qeng
