// Which pages of a cache of codes have their exact rows too, in pages of a second, smaller pool (PagedAttention in
// kernels/ops). A query takes the first tokens of its sequence and the latest ones from there. It owns no memory of the
// device. A page keeps its exact rows as long as some sequence may need them, and after that until others need the
// room: so a sequence that begins with what is remembered can go on from there.
#pragma once
#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_set>
#include <vector>

namespace qeng {

// The tokens of a sequence that queries take exactly: its first ones, and those before the query, itself among them.
struct ExactTokens {
  int64_t first = 0, last = 0;
  bool any() const { return first > 0 || last > 0; }
  // Whether a page of tokens begin .. end is needed by a query after `length` tokens: it takes some of them exactly, or
  // is one.
  bool needed(int64_t begin, int64_t end, int64_t length) const {
    return begin < first || (last > 0 && end > length + 1 - last);
  }
};

class ExactPages {
 public:
  ExactPages(int64_t count, int64_t pages) : of_(static_cast<std::size_t>(pages), -1), places_(of_.size()) {
    for (int64_t i = count - 1; i >= 0; --i) free_.push_back(static_cast<int32_t>(i));
    count_ = count;
  }
  int64_t count() const { return count_; }
  int64_t used() const { return count_ - static_cast<int64_t>(free_.size()); }
  int32_t of(int32_t page) const { return of_[static_cast<std::size_t>(page)]; }  // -1: it has none
  bool free_for(int64_t wanted) const { return static_cast<int64_t>(free_.size()) >= wanted; }

  // Room for so many more pages, by dropping those of pages not needed, the ones unused longest first; false, and
  // nothing changed, where that is not enough.
  bool make_room(int64_t wanted, const std::unordered_set<int32_t>& needed) {
    std::vector<int32_t> dropped;
    for (const int32_t page : used_) {
      if (static_cast<int64_t>(free_.size() + dropped.size()) >= wanted) break;
      if (!needed.count(page)) dropped.push_back(page);
    }
    if (static_cast<int64_t>(free_.size() + dropped.size()) < wanted) return false;
    for (const int32_t page : dropped) drop(page);
    return true;
  }
  void give(int32_t page) {  // there is room, and it has none
    of_[static_cast<std::size_t>(page)] = free_.back();
    free_.pop_back();
    places_[static_cast<std::size_t>(page)] = used_.insert(used_.end(), page);
  }
  void drop(int32_t page) {
    if (of(page) < 0) return;
    free_.push_back(of(page));
    of_[static_cast<std::size_t>(page)] = -1;
    used_.erase(places_[static_cast<std::size_t>(page)]);
  }
  void move(int32_t from, int32_t to) {  // `to` has none
    of_[static_cast<std::size_t>(to)] = of(from);
    of_[static_cast<std::size_t>(from)] = -1;
    *places_[static_cast<std::size_t>(from)] = to;
    places_[static_cast<std::size_t>(to)] = places_[static_cast<std::size_t>(from)];
  }
  void touch(int32_t page) {
    if (of(page) >= 0) used_.splice(used_.end(), used_, places_[static_cast<std::size_t>(page)]);
  }

 private:
  int64_t count_;
  std::vector<int32_t> of_, free_;
  std::list<int32_t> used_;  // pages that have exact rows, the one unused longest first
  std::vector<std::list<int32_t>::iterator> places_;
};

}  // namespace qeng
