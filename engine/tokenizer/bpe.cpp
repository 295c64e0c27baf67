#include "engine/tokenizer/bpe.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <queue>

namespace qeng {
namespace {

constexpr uint64_t kEmpty = ~uint64_t{0};
constexpr size_t kShortPiece = 40;  // below it scanning for the lowest rank beats a heap, and one stack buffer holds it

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}
size_t place_of(uint64_t pair, int shift) { return static_cast<size_t>((pair * 0x9E3779B97F4A7C15u) >> shift); }

}  // namespace

Bpe::Bpe(const int32_t (&byte_ids)[256], size_t expected_merges) {
  std::copy(std::begin(byte_ids), std::end(byte_ids), byte_ids_);
  lacks_bytes_ = std::find(std::begin(byte_ids), std::end(byte_ids), -1) != std::end(byte_ids);
  size_t count = std::bit_ceil(std::max<size_t>(16, expected_merges * 2));
  table_.assign(count, {kEmpty, {}});
  shift_ = 64 - std::countr_zero(count);
}

void Bpe::grow() {
  std::vector<Entry> old(table_.size() * 2, {kEmpty, {}});
  old.swap(table_);
  --shift_;
  used_ = 0;
  for (const Entry& entry : old)
    if (entry.pair != kEmpty)
      add_merge(static_cast<int32_t>(entry.pair >> 32), static_cast<int32_t>(entry.pair), entry.merge);
}

void Bpe::add_merge(int32_t left, int32_t right, Merge merge) {
  if (2 * (used_ + 1) > table_.size()) grow();
  uint64_t pair = pair_of(left, right);
  size_t at = place_of(pair, shift_);
  while (table_[at].pair != kEmpty && table_[at].pair != pair) at = (at + 1) & (table_.size() - 1);
  if (table_[at].pair == pair && table_[at].merge.rank <= merge.rank) return;
  if (table_[at].pair == kEmpty) ++used_;
  table_[at] = {pair, merge};
}

void Bpe::add_whole(const TokenBytes& bytes, int32_t id) {
  auto insert = [&](int32_t value) {
    std::string_view token = bytes[static_cast<size_t>(value)];
    size_t at = XXH3_64bits(token.data(), token.size()) & (whole_table_.size() - 1);
    while (whole_table_[at] >= 0) at = (at + 1) & (whole_table_.size() - 1);
    whole_table_[at] = value;
  };
  if (2 * (wholes_ + 1) > whole_table_.size()) {
    std::vector<int32_t> old(std::max<size_t>(1024, whole_table_.size() * 2), -1);
    old.swap(whole_table_);
    for (int32_t value : old)
      if (value >= 0) insert(value);
  }
  insert(id);
  ++wholes_;
  longest_whole_ = std::max(longest_whole_, bytes[static_cast<size_t>(id)].size());
}

void Bpe::finish() {
  byte_merges_.resize(65536);
  for (size_t a = 0; a < 256; ++a)
    for (size_t b = 0; b < 256; ++b) byte_merges_[a * 256 + b] = find(byte_ids_[a], byte_ids_[b]);
  static_assert(sizeof(Entry) == 16, "hashed as bytes, so it must have no padding");
  uint64_t sums[2] = {0, 0};  // sums, for the order of the entries says nothing
  for (const Entry& entry : table_)
    if (entry.pair != kEmpty) sums[0] += XXH3_64bits(&entry, sizeof entry);
  for (int32_t id : whole_table_)
    if (id >= 0) sums[1] += XXH3_64bits(&id, sizeof id);
  hash_ = XXH3_64bits_withSeed(sums, sizeof sums, XXH3_64bits(byte_ids_, sizeof byte_ids_));
}

Merge Bpe::find(int32_t left, int32_t right) const {
  uint64_t pair = pair_of(left, right);
  size_t at = place_of(pair, shift_);
  while (table_[at].pair != pair) {
    if (table_[at].pair == kEmpty) return {};
    at = (at + 1) & (table_.size() - 1);
  }
  return table_[at].merge;
}

std::vector<std::array<int32_t, 2>> Bpe::merges() const {
  std::vector<const Entry*> used;
  for (const Entry& entry : table_)
    if (entry.pair != kEmpty) used.push_back(&entry);
  std::sort(used.begin(), used.end(), [](const Entry* a, const Entry* b) { return a->merge.rank < b->merge.rank; });
  std::vector<std::array<int32_t, 2>> pairs;
  for (size_t i = 0; i < used.size(); ++i) {
    if (i > 0 && used[i]->merge.rank == used[i - 1]->merge.rank) return {};
    pairs.push_back({static_cast<int32_t>(used[i]->pair >> 32), static_cast<int32_t>(used[i]->pair)});
  }
  return pairs;
}

int32_t Bpe::find_whole(std::string_view piece, const TokenBytes& bytes) const {
  if (piece.size() > longest_whole_ || wholes_ == 0) return -1;
  size_t at = XXH3_64bits(piece.data(), piece.size()) & (whole_table_.size() - 1);
  while (whole_table_[at] >= 0) {
    if (bytes[static_cast<size_t>(whole_table_[at])] == piece) return whole_table_[at];
    at = (at + 1) & (whole_table_.size() - 1);
  }
  return -1;
}

void Bpe::encode(std::string_view piece, const TokenBytes& bytes, std::vector<int32_t>& ids) const {
  if (wholes_)
    if (int32_t id = find_whole(piece, bytes); id >= 0) return ids.push_back(id);
  if (piece.size() <= kShortPiece) return encode_short(piece, ids);
  std::vector<int32_t> parts(piece.size());
  for (size_t i = 0; i < piece.size(); ++i) parts[i] = byte_ids_[static_cast<uint8_t>(piece[i])];
  merge(parts);
  ids.insert(ids.end(), parts.begin(), parts.end());
}

void Bpe::encode_short(std::string_view piece, std::vector<int32_t>& ids) const {
  int32_t id[kShortPiece];
  Merge next[kShortPiece];  // next[i]: the merge of parts i and i + 1
  size_t count = piece.size();
  for (size_t i = 0; i < count; ++i) id[i] = byte_ids_[static_cast<uint8_t>(piece[i])];
  for (size_t i = 0; i + 1 < count; ++i)
    next[i] = byte_merges_[static_cast<uint8_t>(piece[i]) * 256u + static_cast<uint8_t>(piece[i + 1])];
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      if (next[i].rank < next[best].rank) best = i;
    if (next[best].rank == INT32_MAX) break;
    id[best] = next[best].id;
    size_t moved = count - best - 2;
    std::memmove(id + best + 1, id + best + 2, moved * sizeof(int32_t));
    if (moved) std::memmove(next + best, next + best + 1, moved * sizeof(Merge));
    --count;
    if (best + 1 < count) next[best] = find(id[best], id[best + 1]);
    if (best > 0) next[best - 1] = find(id[best - 1], id[best]);
  }
  ids.insert(ids.end(), id, id + count);
}

void Bpe::merge(std::vector<int32_t>& ids) const {
  struct Part {
    int32_t id;  // -1 once it has been joined to its left neighbour
    int32_t previous, next;
  };
  struct Candidate {
    int32_t rank, at, left, right, id;  // stale when the parts at `at` are no longer left and right
    bool operator<(
        const Candidate& other) const {  // the queue's top is its largest: the lowest rank, then the leftmost
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  const auto count = static_cast<int32_t>(ids.size());
  std::vector<Part> parts(ids.size());
  for (int32_t i = 0; i < count; ++i) parts[static_cast<size_t>(i)] = {ids[static_cast<size_t>(i)], i - 1, i + 1};
  auto part = [&](int32_t i) -> Part& { return parts[static_cast<size_t>(i)]; };

  std::vector<Candidate> storage;
  storage.reserve(ids.size());
  auto candidate = [&](int32_t at, auto add) {
    if (at < 0 || part(at).next >= count) return;
    int32_t left = part(at).id, right = part(part(at).next).id;
    if (Merge merge = find(left, right); merge.rank != INT32_MAX) add(Candidate{merge.rank, at, left, right, merge.id});
  };
  for (int32_t i = 0; i + 1 < count; ++i) candidate(i, [&](Candidate c) { storage.push_back(c); });
  std::priority_queue<Candidate> queue(std::less<Candidate>(), std::move(storage));

  while (!queue.empty()) {
    Candidate top = queue.top();
    queue.pop();
    Part& left = part(top.at);
    if (left.id != top.left || left.next >= count || part(left.next).id != top.right) continue;
    Part& right = part(left.next);
    left.id = top.id;
    left.next = right.next;
    right.id = -1;
    if (left.next < count) part(left.next).previous = top.at;
    candidate(left.previous, [&](Candidate c) { queue.push(c); });
    candidate(top.at, [&](Candidate c) { queue.push(c); });
  }
  ids.clear();
  for (int32_t i = 0; i < count; i = part(i).next) ids.push_back(part(i).id);
}

}  // namespace qeng
