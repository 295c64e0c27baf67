// One global sequence of rows, whatever the number of ranks, also where it changes in between.
#include <algorithm>
#include <map>

#include "engine/packets/batches.h"
#include "tests/catch.h"
#include "tests/unit/packets_fixture.h"

using namespace qeng;

namespace {

struct Data {
  TemporaryFolder folder;
  std::shared_ptr<const PacketFile> file;
  Data(int count, int max_tokens, unsigned seed) {
    write_records(folder.file("a.qubgpu"), random_records(count, max_tokens, seed));
    file = PacketFile::open(folder.file("a.qubgpu"));
  }
};

struct Global {                            // a global batch, put together from its ranks
  std::vector<std::vector<int32_t>> rows;  // tokens, then targets, then positions
  int64_t epoch, trained;
  uint64_t documents, crc_dropped;
  BatchState after;
  bool operator==(const Global&) const = default;
};

// The next global batches of ranks that all begin in `state`, until the end or `count` of them.
std::vector<Global> run(const std::shared_ptr<const PacketFile>& file, BatchOptions o, int64_t ranks, BatchState state,
                        size_t count) {
  o.ranks = ranks;
  std::vector<std::unique_ptr<Batches>> all;
  for (o.rank = 0; o.rank < ranks; ++o.rank) {
    all.push_back(std::make_unique<Batches>(file, o));
    all.back()->restore(state);
  }
  std::vector<Global> globals;
  while (globals.size() < count) {
    Global g{std::vector<std::vector<int32_t>>(static_cast<size_t>(o.rows)), 0, 0, 0, 0, {}};
    for (int64_t r = 0; r < ranks; ++r) {
      Batch batch;
      const bool more = all[static_cast<size_t>(r)]->next(batch);
      if (!more) {
        for (auto& other : all) CHECK_FALSE(other->next(batch));
        return globals;
      }
      CHECK(batch.cu_seqlens.size() == static_cast<size_t>(all[0]->max_documents()) + 1);
      const auto width = static_cast<std::ptrdiff_t>(o.row_tokens);
      const int64_t local = (o.rows + ranks - 1) / ranks;
      REQUIRE(batch.tokens.size() == static_cast<size_t>(local * o.row_tokens));
      CHECK(batch.cu_seqlens.back() == local * o.row_tokens);
      for (int64_t i = 0; i < local; ++i) {
        std::vector<int32_t> row;
        for (const auto* values : {&batch.tokens, &batch.targets, &batch.positions})
          row.insert(row.end(), values->begin() + i * width, values->begin() + (i + 1) * width);
        if (i * ranks + r < o.rows) {
          g.rows[static_cast<size_t>(i * ranks + r)] = row;
        } else {
          CHECK(std::all_of(row.begin(), row.begin() + width, [&](int32_t token) { return token == o.pad; }));
        }
      }
      if (r > 0) CHECK((g.epoch == batch.epoch && g.after == batch.after));
      g.epoch = batch.epoch, g.after = batch.after;
      g.trained += batch.trained_tokens, g.documents += batch.counts.documents;
      g.crc_dropped += batch.counts.crc_dropped;
    }
    globals.push_back(g);
  }
  return globals;
}

BatchOptions options() {
  BatchOptions o;
  o.row_tokens = 48, o.rows = 8, o.epochs = 2, o.seed = 11, o.pad = 150001;
  return o;
}

}  // namespace

TEST_CASE("1, 2, 3 and 8 ranks see one global sequence of rows, and go on from each other's states") {
  const Data data(500, 70, 41);
  for (int variant = 0; variant < 4; ++variant) {
    BatchOptions o = options();
    o.prefetch = variant % 2;
    if (variant == 0) o.long_documents = LongDocuments::split;
    if (variant == 1) o.drop = 0.2, o.long_documents = LongDocuments::drop;
    if (variant == 2)
      o.sources = {1, 3}, o.eval_share = 0.1, o.route = true, o.long_documents = LongDocuments::truncate;
    if (variant == 3)
      o.weights = [](int64_t step, const std::vector<uint8_t>& sources) {
        std::vector<double> weights(sources.size(), 1);
        weights[0] = static_cast<double>(step % 7);
        return weights;
      };
    const BatchState start = Batches(data.file, o).state();
    const std::vector<Global> whole = run(data.file, o, 1, start, 1000);
    REQUIRE(whole.size() > 20);
    for (int64_t ranks : {2, 3, 8}) CHECK(run(data.file, o, ranks, start, 1000) == whole);
    // Stops every few batches and goes on with another number of ranks.
    const std::vector<int64_t> turns = {3, 1, 8, 2, 5};
    BatchState state = start;
    std::vector<Global> pieces;
    for (size_t turn = 0; pieces.size() < whole.size(); ++turn) {
      const auto part =
          run(data.file, o, turns[turn % turns.size()], BatchState::from_integers(state.integers()), 3 + turn % 4);
      REQUIRE_FALSE(part.empty());
      pieces.insert(pieces.end(), part.begin(), part.end());
      state = part.back().after;
    }
    CHECK(pieces == whole);
  }
}

TEST_CASE("ranks without a row in the global batch are refused") {
  const Data data(10, 40, 42);
  BatchOptions o = options();
  o.ranks = 9;
  CHECK(error_of([&] { Batches batches(data.file, o); }).find("ranks is 9, expected 1 to 8") != std::string::npos);
  o.ranks = 3, o.rank = 3;
  CHECK(error_of([&] { Batches batches(data.file, o); }).find("rank is 3") != std::string::npos);
}
