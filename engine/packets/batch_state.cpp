// BatchState as integers: seed, epoch, cursor, placed | the lookahead's bits, 32 a word | with a mixture: sources,
// batches | drawn of each | earned of each + kOffset | length of the window | its sources, 4 a word.
#include "engine/packets/batches.h"
#include "kernels/error.h"

namespace qeng {
namespace {

constexpr int64_t kMaxInteger = int64_t{1} << 53;
constexpr int64_t kOffset = int64_t{1} << 52;  // earned is signed, and kWhole times the sources at most
constexpr size_t kWords = kLookahead / 32;

// Takes one integer after another off a list that may be short or hold anything.
class Reader {
 public:
  explicit Reader(const std::vector<int64_t>& integers) : integers_(integers) {}
  bool done() const { return at_ == integers_.size(); }
  int64_t next(int64_t limit = kMaxInteger) {
    if (done()) fail("value", "a batch state is more than the ", at_, " integers that are here");
    const int64_t value = integers_[at_++];
    if (value < 0 || value >= limit)
      fail("value", "integer ", at_, " of a batch state is ", value, ", expected 0 or more and below ", limit);
    return value;
  }
  std::vector<int64_t> list(size_t count) {
    std::vector<int64_t> values;
    for (size_t i = 0; i < count; ++i) values.push_back(next());
    return values;
  }

 private:
  const std::vector<int64_t>& integers_;
  size_t at_ = 0;
};

}  // namespace

std::vector<int64_t> BatchState::integers() const {
  std::vector<int64_t> out = {seed, epoch, static_cast<int64_t>(pack.cursor), pack.placed};
  for (size_t word = 0; word < kWords; ++word) {
    int64_t bits = 0;
    for (size_t i = 0; i < 32; ++i) bits |= int64_t{pack.gone[word * 32 + i]} << i;
    out.push_back(bits);
  }
  if (mix.drawn.empty()) return out;
  out.insert(out.end(), {static_cast<int64_t>(mix.drawn.size()), mix.batches});
  out.insert(out.end(), mix.drawn.begin(), mix.drawn.end());
  for (int64_t earned : mix.earned) out.push_back(earned + kOffset);
  out.push_back(static_cast<int64_t>(mix.window.size()));
  for (size_t at = 0; at < mix.window.size(); at += 4) {
    int64_t word = 0;
    for (size_t i = at; i < std::min(at + 4, mix.window.size()); ++i) word |= int64_t{mix.window[i]} << 8 * (i - at);
    out.push_back(word);
  }
  return out;
}

BatchState BatchState::from_integers(const std::vector<int64_t>& in) {
  Reader reader(in);
  BatchState state;
  state.seed = reader.next(), state.epoch = reader.next();
  state.pack.cursor = static_cast<uint64_t>(reader.next());
  state.pack.placed = static_cast<uint32_t>(reader.next(int64_t{1} << 32));
  for (size_t word = 0; word < kWords; ++word) {
    const int64_t bits = reader.next(int64_t{1} << 32);
    for (size_t i = 0; i < 32; ++i) state.pack.gone[word * 32 + i] = bits >> i & 1;
  }
  if (reader.done()) return state;
  const auto sources = static_cast<size_t>(reader.next(257));
  state.mix.batches = reader.next();
  state.mix.drawn = reader.list(sources);
  state.mix.earned = reader.list(sources);
  for (int64_t& earned : state.mix.earned) earned -= kOffset;
  state.mix.window.resize(static_cast<size_t>(reader.next(kLookahead + 1)));
  for (size_t at = 0; at < state.mix.window.size(); at += 4) {
    const int64_t word = reader.next(int64_t{1} << 32);
    for (size_t i = at; i < std::min(at + 4, state.mix.window.size()); ++i)
      state.mix.window[i] = static_cast<uint8_t>(word >> 8 * (i - at));
  }
  if (!reader.done()) fail("value", "a batch state has fewer than these ", in.size(), " integers");
  return state;
}

}  // namespace qeng
