// Which pages of a paged KV cache belong to which sequence. It owns no memory of the device: pages are numbers, slot
// page * page_tokens + i is row i of a page in every layer's pool (kernels/ops.h, KvStore).
//
// A sequence is its tokens so far and their pages. Pages are shared, counted, and never written while shared: what
// writes into one gets a copy first (copies()). Full pages whose keys and values are stored are remembered by what they
// hold: a new sequence that begins with the same tokens, under the same salt (an adapter's number), takes them instead
// of computing them. A page is found by its tokens and the very page before it, so equal tokens at other positions, or
// after another beginning, are never mistaken for it; hashes only find candidates. Remembered pages that no sequence
// has are free memory: the one unused longest is forgotten when pages are needed.
//
// Where some tokens are kept exactly too (exact_pages.h), a sequence takes over, or goes back to, no more of a beginning
// than it has what the next query needs of it.
//
//   id = open(salt);  reuse(id, prompt);         // how many tokens are there already
//   while (!extend(id, more)) make room;         // slots for new tokens; false, and nothing changed, where pages lack
//   copies(), rows(), run the model;  commit(id);
#pragma once
#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include "engine/generate/exact_pages.h"

namespace qeng {

class PagePool {
 public:
  // Error("value") unless both are at least 1. remember: keep full pages for later sequences.
  // exact_pages: of exact rows, for tokens as `exact` says.
  PagePool(int64_t pages, int page_tokens, bool remember, ExactTokens exact = {}, int64_t exact_pages = 0);

  int64_t open(int64_t salt);
  // Takes remembered pages for the beginning of `tokens`, all but at least one of them; how many tokens they hold. Only
  // for a sequence without tokens.
  int64_t reuse(int64_t id, const std::vector<int32_t>& tokens);
  bool extend(int64_t id, const std::vector<int32_t>& tokens);
  // The keys and values of all of the sequence's tokens are stored.
  void commit(int64_t id);
  void truncate(int64_t id, int64_t length);
  // The longest beginning of a sequence, of at most `length` tokens, that it can be cut to and go on.
  int64_t reachable(int64_t id, int64_t length) const;
  int64_t fork(int64_t id);  // another sequence of the same tokens, sharing all pages
  void close(int64_t id);
  int64_t length(int64_t id) const { return static_cast<int64_t>(at(id).tokens.size()); }
  const std::vector<int32_t>& pages_of(int64_t id) const { return at(id).pages; }

  // Pages to copy before anything else is stored, {from, to} one after another; they are told once.
  std::vector<int32_t> copies();
  std::vector<int32_t> exact_copies();  // the same, of exact pages

  // What a step over the last `count` tokens of each sequence is given (PagedAttention), padded to so many rows and
  // sequences.
  struct Rows {
    std::vector<int32_t> tokens, positions, slots;  // [rows]: 0, 0, -1 where there is none
    std::vector<int32_t> cu_q, lengths, pages;      // [sequences + 1], [sequences], [sequences, most] (-1)
    // [sequences]: the page of the token before the step's first, the number of pages where there is none; and the page
    // of its last token (-1). Between them a state goes from one snapshot to the next.
    std::vector<int32_t> before, after;
    // [rows], [sequences, most]: where the tokens' exact rows are, -1 where there are none
    std::vector<int32_t> exact_slots, exact;
  };
  struct Part {
    int64_t id, count;
  };
  // Error("value") where something does not fit.
  Rows rows(const std::vector<Part>& parts, int64_t rows, int64_t sequences, int64_t most) const;

  int64_t pages() const { return static_cast<int64_t>(states_.size()); }
  int page_tokens() const { return page_tokens_; }
  int64_t available() const { return static_cast<int64_t>(free_.size() + idle_.size()); }  // pages that extend can have
  int64_t remembered() const { return static_cast<int64_t>(found_by_.size()); }
  int64_t sequences() const { return static_cast<int64_t>(sequences_.size()); }
  const ExactPages& exact() const { return exact_; }
  void drop_exact(int64_t id, int64_t index);  // the exact rows of a sequence's page, where nothing was stored in them
  void forget();                               // all remembered pages that no sequence has
  int64_t forget_of(int64_t id);               // and those of a sequence that no other has; how many that were

  // What is remembered by its beginnings: all pages that go on from one first page. `longest` pages of them are the
  // longest sequence, `used` are those that a sequence has, and the first one was taken over `reused` times.
  struct Beginning {
    int64_t salt, pages, longest, used, reused;  // salt -1: what it went on from is forgotten
  };
  std::vector<Beginning> beginnings() const;  // the one with the most pages first

 private:
  struct State {
    int64_t users = 0;
    uint64_t serial = 0;  // of what it is remembered as; 0: not remembered
    uint64_t before = 0;  // the serial of the page before it, or the salt
    uint64_t hash = 0;
    int64_t reused = 0;  // of a first page: sequences that took it over and went on
    std::vector<int32_t> tokens;
    std::list<int32_t>::iterator idle;  // its place among the idle, where it has no users and is remembered
  };
  struct Sequence {
    uint64_t salt;
    std::vector<int32_t> tokens;
    std::vector<int32_t> pages;
    std::vector<uint64_t> serials;  // of the full pages that are committed
    bool took = false;              // reuse() gave it its pages, and it has not gone on yet
    size_t committed = 0;           // tokens whose keys and values are stored
  };
  Sequence& at(int64_t id);
  const Sequence& at(int64_t id) const;
  int32_t find(uint64_t before, const int32_t* tokens) const;  // a remembered page, or -1
  int32_t take();                                              // a page with one user
  int32_t take_for(int64_t index);                             // the same, as page `index` of a sequence
  bool make_exact_room(int64_t first, int64_t count);
  void share(int32_t page);
  void release(int32_t page);
  void forget(int32_t page);
  uint64_t hash_of(uint64_t before, const int32_t* tokens) const;

  int page_tokens_;
  bool remember_;
  ExactTokens exact_tokens_;
  ExactPages exact_;
  std::vector<State> states_;
  std::vector<int32_t> free_;
  std::list<int32_t> idle_;  // the one unused longest first
  std::unordered_multimap<uint64_t, int32_t> found_by_;
  std::unordered_map<int64_t, Sequence> sequences_;
  std::vector<int32_t> copies_, exact_copies_;
  int64_t next_id_ = 1;
  uint64_t next_serial_ = 1;
};

}  // namespace qeng
