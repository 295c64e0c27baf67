#include "engine/generate/page_pool.h"

#include <algorithm>
#include <map>
#include <random>

#include "kernels/error.h"
#include "tests/catch.h"

using namespace qeng;

namespace {

// A cache whose "keys and values" are a number that depends on the salt and all tokens up to a position, so that a page
// which holds anything else than it should is found.
struct Model {
  PagePool& pool;
  ExactTokens exact;
  std::vector<uint64_t> memory, exact_memory;
  struct Known {
    int64_t salt;
    std::vector<int32_t> tokens;
    int64_t stored = 0;
  };
  std::map<int64_t, Known> sequences;

  explicit Model(PagePool& p, ExactTokens tokens = {})
      : pool(p),
        exact(tokens),
        memory(static_cast<size_t>(p.pages() * p.page_tokens()), 0),
        exact_memory(static_cast<size_t>(p.exact().count() * p.page_tokens()), 0) {}

  static uint64_t value(const Known& known, size_t position) {
    uint64_t hash = 77 + static_cast<uint64_t>(known.salt);
    for (size_t i = 0; i <= position; ++i)
      hash = (hash ^ static_cast<uint64_t>(known.tokens[i])) * 0x9e3779b97f4a7c15u + i;
    return hash;
  }
  bool extend(int64_t id, const std::vector<int32_t>& tokens) {
    const bool done = pool.extend(id, tokens);
    const auto copy = [&](const std::vector<int32_t>& copies, std::vector<uint64_t>& in) {
      const long page = pool.page_tokens();
      for (size_t i = 0; i < copies.size(); i += 2)
        std::copy_n(in.begin() + copies[i] * page, page, in.begin() + copies[i + 1] * page);
    };
    copy(pool.copies(), memory), copy(pool.exact_copies(), exact_memory);
    Known& known = sequences[id];
    if (!done) return false;
    known.tokens.insert(known.tokens.end(), tokens.begin(), tokens.end());
    const int64_t count = static_cast<int64_t>(tokens.size());
    const auto rows = pool.rows({{id, count}}, count, 1, pool.pages());
    for (size_t i = 0; i < tokens.size(); ++i) {
      CHECK(rows.tokens[i] == tokens[i]);
      memory[static_cast<size_t>(rows.slots[i])] = value(known, static_cast<size_t>(rows.positions[i]));
      if (exact.last > 0) CHECK(rows.exact_slots[i] >= 0);  // each is a query that takes itself
      if (rows.exact_slots[i] >= 0)
        exact_memory[static_cast<size_t>(rows.exact_slots[i])] = value(known, static_cast<size_t>(rows.positions[i]));
    }
    return true;
  }
  bool right(int64_t id) {
    const Known& known = sequences[id];
    if (pool.length(id) != static_cast<int64_t>(known.tokens.size())) return false;
    const auto rows = pool.rows({{id, 0}}, 0, 1, pool.pages());
    for (size_t i = 0; i < known.tokens.size(); ++i) {
      const size_t page = static_cast<size_t>(pool.page_tokens());
      if (memory[static_cast<size_t>(rows.pages[i / page]) * page + i % page] != value(known, i)) return false;
      const int64_t at = static_cast<int64_t>(i);
      if (at >= exact.first && at + exact.last <= pool.length(id)) continue;  // the next query takes it from the codes
      const int32_t exact_page = rows.exact[i / page];
      if (exact_page < 0 || exact_memory[static_cast<size_t>(exact_page) * page + i % page] != value(known, i))
        return false;
    }
    return true;
  }
};

std::vector<int32_t> counted(int32_t first, int count) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

std::string refused(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.code;
  }
  return "none";
}

}  // namespace

TEST_CASE("equal prompts share the pages that are full, under their own salt and at their own positions") {
  PagePool pool(20, 4, true);
  const auto fill = [&](int64_t salt, const std::vector<int32_t>& tokens) {
    const int64_t id = pool.open(salt);
    const int64_t held = pool.reuse(id, tokens);
    REQUIRE(pool.extend(id, {tokens.begin() + held, tokens.end()}));
    pool.commit(id);
    return std::pair{id, held};
  };
  const auto [first, none] = fill(0, counted(0, 10));
  CHECK(none == 0);
  CHECK(pool.available() == 17);
  CHECK(fill(0, counted(0, 10)).second == 8);  // two full pages; the third is its own
  CHECK(pool.available() == 16);
  CHECK(fill(1, counted(0, 10)).second == 0);  // another adapter
  CHECK(fill(0, counted(4, 8)).second == 0);   // the tokens of page 1 at position 0
  CHECK(fill(0, {0, 1, 2, 3, 9, 9, 9, 9, 4, 5, 6, 7}).second ==
        4);  // page 0, then the tokens of page 1 after another one
  pool.close(first);
  CHECK(fill(0, counted(0, 8)).second == 7);  // the last token is computed, for its logits
  CHECK(pool.copies().size() == 2);           // into a copy of the page that the second sequence has
}

TEST_CASE("remembered pages are free memory and go from the longest unused on, ends first") {
  PagePool pool(6, 4, true);
  for (const int32_t start : {0, 100}) {
    const int64_t id = pool.open(0);
    REQUIRE(pool.extend(id, counted(start, 12)));
    pool.commit(id), pool.close(id);
  }
  CHECK((pool.available() == 6 && pool.remembered() == 6));
  const int64_t other = pool.open(0);
  REQUIRE(pool.extend(other, counted(500, 5)));
  CHECK(pool.remembered() == 4);
  const int64_t again = pool.open(0);
  CHECK(pool.reuse(again, counted(0, 12)) == 4);
  const int64_t second = pool.open(0);
  CHECK(pool.reuse(second, counted(100, 13)) == 12);
  CHECK(pool.available() == 0);
  CHECK(!pool.extend(second, {1, 2}));
  CHECK(pool.length(second) == 12);
  pool.close(again), pool.close(other), pool.close(second);
  CHECK(pool.available() == 6);
  pool.forget();
  CHECK(pool.remembered() == 0);
}

TEST_CASE("a sequence's pages are forgotten, but for those that another has") {
  PagePool pool(8, 4, true);
  const auto begin = [&](const std::vector<int32_t>& tokens) {
    const int64_t id = pool.open(0);
    const int64_t held = pool.reuse(id, tokens);
    REQUIRE(pool.extend(id, {tokens.begin() + held, tokens.end()}));
    pool.commit(id);
    return id;
  };
  const int64_t first = begin(counted(0, 9));
  const int64_t second = begin({0, 1, 2, 3, 9, 9, 9, 9, 9});
  CHECK(pool.pages_of(second)[0] == pool.pages_of(first)[0]);
  CHECK(pool.forget_of(second) == 1);
  pool.close(second);
  CHECK(pool.remembered() == 2);
  pool.close(first);
  const int64_t third = pool.open(0);
  CHECK(pool.reuse(third, {0, 1, 2, 3, 9, 9, 9, 9, 9}) == 4);
  CHECK(pool.reuse(pool.open(0), counted(0, 9)) == 8);
  CHECK_THROWS(pool.forget_of(99));
}

TEST_CASE("beginnings are the trees of what is remembered: their pages, depth, users and how often each was taken") {
  PagePool pool(20, 4, true);
  const auto fill = [&](int64_t salt, const std::vector<int32_t>& tokens) {
    const int64_t id = pool.open(salt), held = pool.reuse(id, tokens);
    REQUIRE(pool.extend(id, {tokens.begin() + held, tokens.end()}));
    pool.commit(id);
    return id;
  };
  const auto figures = [&](size_t i) {
    const auto all = pool.beginnings();
    REQUIRE(i < all.size());
    return std::vector<int64_t>{all[i].salt, all[i].pages, all[i].longest, all[i].used, all[i].reused};
  };
  CHECK(pool.beginnings().empty());
  pool.close(fill(0, counted(0, 14)));          // three full pages
  fill(0, {0, 1, 2, 3, 9, 9, 9, 9, 8});         // the first of them, and another second
  const int64_t left = fill(7, counted(0, 5));  // under an adapter
  CHECK(figures(0) == std::vector<int64_t>{0, 4, 3, 2, 1});
  CHECK(figures(1) == std::vector<int64_t>{7, 1, 1, 1, 0});
  const int64_t waiting = pool.open(7);
  CHECK(pool.reuse(waiting, counted(0, 6)) == 4);
  pool.close(waiting);  // it found no room and took nothing
  pool.close(left);
  CHECK(figures(1) == std::vector<int64_t>{7, 1, 1, 0, 0});
  fill(7, counted(0, 6));
  CHECK(figures(1) == std::vector<int64_t>{7, 1, 1, 1, 1});
  CHECK(pool.beginnings().size() == 2);
}

TEST_CASE("whatever sequences do, each finds what it stored, exact rows too, and nothing is lost") {
  for (const auto& [remember, exact] : {std::pair{true, ExactTokens{}},
                                        {false, ExactTokens{}},
                                        {true, ExactTokens{3, 7}},
                                        {true, ExactTokens{0, 1}},
                                        {true, ExactTokens{2, 0}},
                                        {false, ExactTokens{6, 5}}})
    for (unsigned seed = 1; seed <= 30; ++seed) {
      std::mt19937 random(seed);
      const auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
      const int pages = 4 + below(40), size = 1 + below(5);
      PagePool pool(pages, size, remember, exact, exact.any() ? 4 + below(30) : 0);
      Model model(pool, exact);
      for (int step = 0; step < 400; ++step) {
        std::vector<int64_t> ids;
        for (const auto& [id, known] : model.sequences) ids.push_back(id);
        const int64_t id = ids.empty() ? 0 : ids[static_cast<size_t>(below(static_cast<unsigned>(ids.size())))];
        std::vector<int32_t> some;
        for (int i = below(14); i >= 0; --i)
          some.push_back(below(2));  // two tokens only, so that many beginnings are equal
        switch (id == 0 ? 0 : below(7)) {
          case 0: {
            if (ids.size() > 8) break;
            Model::Known known{below(2), {}};
            const int64_t opened = pool.open(known.salt), held = pool.reuse(opened, some);
            CHECK(held < static_cast<int64_t>(some.size()));
            known.tokens.assign(some.begin(), some.begin() + held);
            model.sequences[opened] = known;
            break;
          }
          case 1:
          case 2:
          case 3: {
            const int64_t before = pool.available();
            if (!model.extend(id, some))
              CHECK(pool.available() == before);
            else if (below(3))
              pool.commit(id);
            else
              pool.truncate(id, pool.reachable(id, pool.length(id) - static_cast<int64_t>(some.size()))),
                  model.sequences[id].tokens.resize(static_cast<size_t>(pool.length(id)));
            break;
          }
          case 4: {
            const int64_t length = pool.reachable(id, below(static_cast<unsigned>(pool.length(id)) + 1));
            pool.truncate(id, length), model.sequences[id].tokens.resize(static_cast<size_t>(length));
            break;
          }
          case 5:
            if (ids.size() <= 8) model.sequences[pool.fork(id)] = model.sequences[id];
            break;
          case 6: pool.close(id), model.sequences.erase(id); break;
        }
        for (const auto& [each, known] : model.sequences) {
          INFO("seed " << seed << ", step " << step << ", sequence " << each);
          REQUIRE(model.right(each));
        }
      }
      while (!model.sequences.empty())
        pool.close(model.sequences.begin()->first), model.sequences.erase(model.sequences.begin());
      CHECK((pool.available() == pool.pages() && pool.sequences() == 0));
      pool.forget();
      CHECK(pool.exact().used() == 0);
    }
}

TEST_CASE("a beginning is taken over as far as its exact rows are there") {
  PagePool pool(40, 4, true, {2, 8}, 9);
  const auto run = [&](const std::vector<int32_t>& tokens) {
    const int64_t id = pool.open(0), held = pool.reuse(id, tokens);
    for (size_t i = static_cast<size_t>(held); i < tokens.size(); i += 8) {
      REQUIRE(pool.extend(id, {tokens.begin() + static_cast<long>(i),
                               tokens.begin() + static_cast<long>(std::min(tokens.size(), i + 8))}));
      pool.commit(id);
    }
    pool.close(id);
    return held;
  };
  CHECK(run(counted(0, 24)) == 0);
  CHECK(run(counted(0, 24)) == 23);  // all six pages have theirs
  CHECK(run(counted(100, 24)) == 0);
  std::vector<int32_t> longer = counted(0, 24);
  longer.resize(40, 7);
  const int64_t held = run(longer);  // the other one took some of them away
  CHECK((held < 24 && held % 4 == 0));
}

TEST_CASE("one sequence fits exact pages for its first and latest tokens, a step, and two more") {
  PagePool pool(100, 4, true, {4, 8}, 1 + 3 + 4 + 2);
  const int64_t id = pool.open(0);
  for (int step = 0; step < 20; ++step) {
    REQUIRE(pool.extend(id, counted(16 * step, 16)));
    pool.commit(id);
  }
  CHECK(pool.reachable(id, 320) == 320);
  CHECK(pool.reachable(id, 40) == 4);  // the first page is still there, and those before token 40 are not
}

TEST_CASE("a page pool refuses what it does not have") {
  CHECK(refused([] { PagePool(0, 16, true); }) == "value");
  PagePool pool(2, 4, true);
  const int64_t id = pool.open(0);
  CHECK(refused([&] { pool.extend(id + 1, {1}); }) == "value");
  REQUIRE(pool.extend(id, counted(0, 6)));
  CHECK(refused([&] { pool.truncate(id, 7); }) == "value");
  CHECK(refused([&] { pool.reuse(id, {1, 2}); }) == "value");
  CHECK(refused([&] { pool.rows({{id, 7}}, 8, 1, 2); }) == "value");
  CHECK(refused([&] { pool.rows({{id, 1}}, 1, 1, 1); }) == "value");
  const auto rows = pool.rows({{id, 2}}, 3, 2, 3);
  CHECK((rows.tokens == std::vector<int32_t>{4, 5, 0} && rows.positions == std::vector<int32_t>{4, 5, 0}));
  CHECK((rows.slots == std::vector<int32_t>{4, 5, -1} && rows.cu_q == std::vector<int32_t>{0, 2, 2}));
  CHECK((rows.lengths == std::vector<int32_t>{6, 0} && rows.pages == std::vector<int32_t>{0, 1, -1, -1, -1, -1}));
  CHECK((rows.before == std::vector<int32_t>{0, 2} && rows.after == std::vector<int32_t>{1, -1}));
  CHECK(pool.rows({{id, 6}}, 6, 1, 2).before == std::vector<int32_t>{2});
}
