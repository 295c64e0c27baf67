#include "engine/generate/page_pool.h"

#include <algorithm>

#include "kernels/error.h"

namespace qeng {
namespace {
constexpr uint64_t kSalt = uint64_t{1} << 63;  // marks a salt, where otherwise the serial of a page stands
}

PagePool::PagePool(int64_t pages, int page_tokens, bool remember, ExactTokens exact, int64_t exact_pages)
    : page_tokens_(page_tokens),
      remember_(remember),
      exact_tokens_(exact),
      exact_(exact.any() ? exact_pages : 0, std::max<int64_t>(0, pages)) {
  if (pages < 1 || page_tokens < 1 || pages > INT32_MAX / page_tokens)
    fail("value", "page pool: ", pages, " pages of ", page_tokens,
         " tokens; expected at least 1, and less than 2^31 slots");
  states_.resize(static_cast<size_t>(pages));
  for (int64_t page = pages - 1; page >= 0; --page) free_.push_back(static_cast<int32_t>(page));
}

PagePool::Sequence& PagePool::at(int64_t id) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) fail("value", "page pool: there is no sequence ", id, "; it was closed, or never opened");
  return it->second;
}
const PagePool::Sequence& PagePool::at(int64_t id) const { return const_cast<PagePool*>(this)->at(id); }

int64_t PagePool::open(int64_t salt) {
  sequences_[next_id_] = {kSalt | static_cast<uint64_t>(salt), {}, {}, {}};
  return next_id_++;
}

// FNV-1a over the words; candidates are compared in full.
uint64_t PagePool::hash_of(uint64_t before, const int32_t* tokens) const {
  uint64_t hash = 14695981039346656037u ^ before;
  for (int i = -1; i < page_tokens_; ++i) {
    hash ^= i < 0 ? before : static_cast<uint64_t>(static_cast<uint32_t>(tokens[i]));
    hash *= 1099511628211u;
    hash ^= hash >> 32;
  }
  return hash;
}

int32_t PagePool::find(uint64_t before, const int32_t* tokens) const {
  const auto [first, last] = found_by_.equal_range(hash_of(before, tokens));
  for (auto it = first; it != last; ++it) {
    const State& state = states_[static_cast<size_t>(it->second)];
    if (state.before == before && std::equal(state.tokens.begin(), state.tokens.end(), tokens)) return it->second;
  }
  return -1;
}

void PagePool::forget(int32_t page) {
  State& state = states_[static_cast<size_t>(page)];
  if (state.serial == 0) return;
  const auto [first, last] = found_by_.equal_range(state.hash);
  found_by_.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second == page; }));
  state.serial = 0, state.reused = 0;
  state.tokens.clear();
  if (state.users == 0) {
    exact_.drop(page);
    idle_.erase(state.idle);
    free_.push_back(page);
  }
}

void PagePool::forget() {
  while (!idle_.empty()) forget(idle_.front());
}

int64_t PagePool::forget_of(int64_t id) {
  int64_t count = 0;
  for (const int32_t page : at(id).pages) {
    const State& state = states_[static_cast<size_t>(page)];
    if (state.users > 1 || state.serial == 0) continue;
    forget(page);
    ++count;
  }
  at(id).serials.clear();
  return count;
}

int32_t PagePool::take() {
  if (free_.empty()) forget(idle_.front());
  const int32_t page = free_.back();
  free_.pop_back();
  states_[static_cast<size_t>(page)].users = 1;
  return page;
}

void PagePool::share(int32_t page) {
  State& state = states_[static_cast<size_t>(page)];
  if (state.users++ == 0) idle_.erase(state.idle);
}

void PagePool::release(int32_t page) {
  State& state = states_[static_cast<size_t>(page)];
  if (--state.users > 0) return;
  if (state.serial == 0) {
    exact_.drop(page);
    free_.push_back(page);
  } else {
    state.idle = idle_.insert(idle_.end(), page);
  }
}

int32_t PagePool::take_for(int64_t index) {
  const int32_t page = take();
  if (exact_tokens_.last > 0 || index * page_tokens_ < exact_tokens_.first) exact_.give(page);
  return page;
}

// Room for the exact rows of pages first .. first + count of a sequence. What a sequence needs of its pages is kept: for
// the tokens after those that are stored, and one page before, as a step that was cut short goes back to whole pages.
bool PagePool::make_exact_room(int64_t first, int64_t count) {
  int64_t wanted = 0;
  for (int64_t i = first; i < first + count; ++i)
    wanted += exact_tokens_.last > 0 || i * page_tokens_ < exact_tokens_.first;
  if (exact_.free_for(wanted)) return true;
  std::unordered_set<int32_t> needed;
  for (const auto& [id, sequence] : sequences_) {
    const int64_t from = static_cast<int64_t>(sequence.committed) - page_tokens_;
    for (size_t i = sequence.pages.size(); i-- > 0;) {
      const int64_t begin = static_cast<int64_t>(i) * page_tokens_;
      if (exact_tokens_.needed(begin, begin + page_tokens_, from)) {
        needed.insert(sequence.pages[i]);
      } else {  // the first ones are left
        i = std::min<size_t>(i, static_cast<size_t>((exact_tokens_.first + page_tokens_ - 1) / page_tokens_));
      }
    }
  }
  return exact_.make_room(wanted, needed);
}

int64_t PagePool::reachable(int64_t id, int64_t length) const {
  const Sequence& sequence = at(id);
  if (!exact_tokens_.any()) return length;
  const auto complete = [&](int64_t held) {
    for (int64_t begin = 0; begin < held; begin += page_tokens_)
      if (exact_tokens_.needed(begin, begin + page_tokens_, held) &&
          exact_.of(sequence.pages[static_cast<size_t>(begin / page_tokens_)]) < 0)
        return false;
    return true;
  };
  while (length > 0 && !complete(length)) length = (length - 1) / page_tokens_ * page_tokens_;
  return length;
}

int64_t PagePool::reuse(int64_t id, const std::vector<int32_t>& tokens) {
  Sequence& sequence = at(id);
  if (!sequence.tokens.empty())
    fail("value", "page pool: reuse: sequence ", id, " has ", sequence.tokens.size(), " tokens already");
  const size_t page_tokens = static_cast<size_t>(page_tokens_);
  uint64_t before = sequence.salt;
  for (size_t begin = 0; begin + page_tokens <= tokens.size(); begin += page_tokens) {
    const int32_t page = find(before, tokens.data() + begin);
    if (page < 0) break;
    share(page);
    before = states_[static_cast<size_t>(page)].serial;
    sequence.pages.push_back(page);
    sequence.serials.push_back(before);
  }
  const size_t held = std::min(sequence.pages.size() * page_tokens, tokens.empty() ? 0 : tokens.size() - 1);
  sequence.tokens.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(held));
  const int64_t kept = reachable(id, static_cast<int64_t>(held));
  truncate(id, kept);
  for (const int32_t page : sequence.pages) exact_.touch(page);
  sequence.took = true, sequence.committed = static_cast<size_t>(kept);
  return kept;
}

bool PagePool::extend(int64_t id, const std::vector<int32_t>& tokens) {
  Sequence& sequence = at(id);
  if (tokens.empty()) return true;
  const size_t page_tokens = static_cast<size_t>(page_tokens_), length = sequence.tokens.size();
  const size_t wanted = (length + tokens.size() + page_tokens - 1) / page_tokens,
               added = wanted - sequence.pages.size();
  int32_t last = length % page_tokens ? sequence.pages.back() : -1;  // is written into
  const bool copied = last >= 0 && states_[static_cast<size_t>(last)].users > 1;
  if (static_cast<int64_t>(added) + copied > available()) return false;
  const int64_t first = static_cast<int64_t>(sequence.pages.size()) - copied;
  if (exact_tokens_.any() && !make_exact_room(first, static_cast<int64_t>(added) + copied)) return false;
  if (sequence.took && !sequence.pages.empty()) ++states_[static_cast<size_t>(sequence.pages[0])].reused;
  sequence.took = false;
  if (copied) {
    const int32_t own = take_for(first);
    copies_.insert(copies_.end(), {last, own});
    if (exact_.of(last) >= 0 && exact_.of(own) >= 0)
      exact_copies_.insert(exact_copies_.end(), {exact_.of(last), exact_.of(own)});
    release(last);
    sequence.pages.back() = own;
  } else if (last >= 0) {
    forget(last);  // it will hold something else than what it is remembered as
  }
  for (size_t i = 0; i < added; ++i) sequence.pages.push_back(take_for(static_cast<int64_t>(sequence.pages.size())));
  sequence.tokens.insert(sequence.tokens.end(), tokens.begin(), tokens.end());
  return true;
}

void PagePool::commit(int64_t id) {
  Sequence& sequence = at(id);
  sequence.committed = sequence.tokens.size();
  if (!remember_) return;
  const size_t page_tokens = static_cast<size_t>(page_tokens_);
  for (size_t i = sequence.serials.size(); (i + 1) * page_tokens <= sequence.tokens.size(); ++i) {
    const uint64_t before = i ? sequence.serials[i - 1] : sequence.salt;
    const int32_t* tokens = sequence.tokens.data() + i * page_tokens;
    const int32_t known = find(before, tokens);
    if (known >= 0) {  // another sequence was first: one of the two equal pages is enough
      if (known != sequence.pages[i]) {
        share(known);
        if (exact_.of(known) < 0 && exact_.of(sequence.pages[i]) >= 0) exact_.move(sequence.pages[i], known);
        release(sequence.pages[i]);
        sequence.pages[i] = known;
      }
    } else {
      State& state = states_[static_cast<size_t>(sequence.pages[i])];
      if (state.serial == 0) {
        state.serial = next_serial_++;
        state.before = before;
        state.hash = hash_of(before, tokens);
        state.tokens.assign(tokens, tokens + page_tokens);
        found_by_.emplace(state.hash, sequence.pages[i]);
      }
    }
    sequence.serials.push_back(states_[static_cast<size_t>(sequence.pages[i])].serial);
  }
}

void PagePool::truncate(int64_t id, int64_t length) {
  Sequence& sequence = at(id);
  if (length < 0 || length > static_cast<int64_t>(sequence.tokens.size()))
    fail("value", "page pool: truncate: sequence ", id, " has ", sequence.tokens.size(), " tokens, not ", length);
  const size_t page_tokens = static_cast<size_t>(page_tokens_), kept = static_cast<size_t>(length);
  sequence.tokens.resize(kept);
  sequence.committed = std::min(sequence.committed, kept);
  while (sequence.pages.size() >
         (kept + page_tokens - 1) / page_tokens) {  // from the last: the ends are forgotten first
    release(sequence.pages.back());
    sequence.pages.pop_back();
  }
  sequence.serials.resize(std::min(sequence.serials.size(), kept / page_tokens));
}

void PagePool::drop_exact(int64_t id, int64_t index) {
  const Sequence& sequence = at(id);
  if (index < 0 || index >= static_cast<int64_t>(sequence.pages.size()))
    fail("value", "page pool: sequence ", id, " has ", sequence.pages.size(), " pages, not one of number ", index);
  exact_.drop(sequence.pages[static_cast<size_t>(index)]);
}

int64_t PagePool::fork(int64_t id) {
  const Sequence copy = at(id);
  for (const int32_t page : copy.pages) share(page);
  sequences_[next_id_] = copy;
  return next_id_++;
}

void PagePool::close(int64_t id) {
  truncate(id, 0);
  sequences_.erase(id);
}

std::vector<PagePool::Beginning> PagePool::beginnings() const {
  std::vector<const State*> remembered;
  for (const auto& [hash, page] : found_by_) remembered.push_back(&states_[static_cast<size_t>(page)]);
  // A page is remembered after the one before it.
  std::sort(remembered.begin(), remembered.end(), [](const State* a, const State* b) { return a->serial < b->serial; });
  struct Place {
    size_t beginning;
    int64_t depth;
  };
  std::unordered_map<uint64_t, Place> places;
  std::vector<Beginning> found;
  for (const State* state : remembered) {
    const auto before = places.find(state->before);
    Place place{found.size(), 1};
    if (before != places.end()) {
      place = {before->second.beginning, before->second.depth + 1};
    } else {
      const bool first = (state->before & kSalt) != 0;
      found.push_back({first ? static_cast<int64_t>(state->before & ~kSalt) : -1, 0, 0, 0, state->reused});
    }
    places.emplace(state->serial, place);
    Beginning& beginning = found[place.beginning];
    ++beginning.pages;
    beginning.used += state->users > 0;
    beginning.longest = std::max(beginning.longest, place.depth);
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.pages > b.pages; });
  return found;
}

std::vector<int32_t> PagePool::copies() {
  std::vector<int32_t> told;
  told.swap(copies_);
  return told;
}

std::vector<int32_t> PagePool::exact_copies() {
  std::vector<int32_t> told;
  told.swap(exact_copies_);
  return told;
}

PagePool::Rows PagePool::rows(const std::vector<Part>& parts, int64_t rows, int64_t sequences, int64_t most) const {
  Rows out;
  const auto size = [](int64_t n) { return static_cast<size_t>(n); };
  if (static_cast<int64_t>(parts.size()) > sequences)
    fail("value", "page pool: rows: ", parts.size(), " sequences, room for ", sequences);
  out.tokens.reserve(size(rows)), out.positions.reserve(size(rows)), out.slots.reserve(size(rows));
  out.pages.assign(size(sequences * most), -1);
  out.exact.assign(size(sequences * most), -1);
  out.cu_q.push_back(0);
  for (const Part& part : parts) {
    const Sequence& sequence = at(part.id);
    const int64_t length = static_cast<int64_t>(sequence.tokens.size());
    if (part.count < 0 || part.count > length || static_cast<int64_t>(out.tokens.size()) + part.count > rows ||
        static_cast<int64_t>(sequence.pages.size()) > most)
      fail("value", "page pool: rows: ", part.count, " rows of sequence ", part.id, " with ", length, " tokens on ",
           sequence.pages.size(), " pages do not fit ", rows, " rows of ", most, " pages");
    for (int64_t position = length - part.count; position < length; ++position) {
      out.tokens.push_back(sequence.tokens[size(position)]);
      out.positions.push_back(static_cast<int32_t>(position));
      out.slots.push_back(sequence.pages[size(position / page_tokens_)] * page_tokens_ +
                          static_cast<int32_t>(position % page_tokens_));
      const int32_t exact = exact_.of(sequence.pages[size(position / page_tokens_)]);
      out.exact_slots.push_back(exact < 0 ? -1 : exact * page_tokens_ + static_cast<int32_t>(position % page_tokens_));
    }
    for (size_t i = 0; i < sequence.pages.size(); ++i)
      out.exact[size(most) * out.lengths.size() + i] = exact_.of(sequence.pages[i]);
    std::copy(sequence.pages.begin(), sequence.pages.end(),
              out.pages.begin() + static_cast<std::ptrdiff_t>(size(most) * out.lengths.size()));
    const int64_t start = length - part.count;
    out.before.push_back(start > 0 ? sequence.pages[size((start - 1) / page_tokens_)] : static_cast<int32_t>(pages()));
    out.after.push_back(length > 0 ? sequence.pages[size((length - 1) / page_tokens_)] : -1);
    out.lengths.push_back(static_cast<int32_t>(length));
    out.cu_q.push_back(static_cast<int32_t>(out.tokens.size()));
  }
  out.tokens.resize(size(rows), 0), out.positions.resize(size(rows), 0), out.slots.resize(size(rows), -1);
  out.exact_slots.resize(size(rows), -1);
  out.before.resize(size(sequences), static_cast<int32_t>(pages())), out.after.resize(size(sequences), -1);
  out.lengths.resize(size(sequences), 0), out.cu_q.resize(size(sequences) + 1, out.cu_q.back());
  return out;
}

}  // namespace qeng
