#include "engine/packets/packer.h"

#include <algorithm>
#include <map>

#include "engine/packets/batches.h"
#include "kernels/error.h"
#include "tests/catch.h"
#include "tests/unit/packets_fixture.h"

using namespace qeng;

namespace {

struct Data {
  TemporaryFolder folder;
  std::vector<Record> records;
  std::shared_ptr<const PacketFile> file;
  Data(int count, int max_tokens, unsigned seed) : records(random_records(count, max_tokens, seed)) {
    write_records(folder.file("a.qubgpu"), records);
    file = PacketFile::open(folder.file("a.qubgpu"));
  }
};

BatchOptions options(int64_t row_tokens, int64_t rows, int64_t epochs) {
  BatchOptions o;
  o.row_tokens = row_tokens, o.rows = rows, o.epochs = epochs, o.seed = 11, o.pad = 150001;
  return o;
}

std::vector<Batch> all(Batches& batches) {
  std::vector<Batch> out;
  for (Batch batch; batches.next(batch);) out.push_back(batch);
  return out;
}

bool same(const Batch& a, const Batch& b) {
  return a.tokens == b.tokens && a.targets == b.targets && a.positions == b.positions && a.cu_seqlens == b.cu_seqlens &&
         a.epoch == b.epoch && a.trained_tokens == b.trained_tokens && a.after == b.after;
}

// What every batch must satisfy, written from the contract and the documents alone. Returns its trained tokens.
int64_t check_batch(const Batch& batch, const std::vector<Record>& records, const BatchOptions& o) {
  const auto slots = static_cast<size_t>(o.rows * o.row_tokens);
  REQUIRE(batch.tokens.size() == slots);
  REQUIRE(batch.cu_seqlens.front() == 0);
  REQUIRE(batch.cu_seqlens.back() == static_cast<int32_t>(slots));
  CHECK(std::is_sorted(batch.cu_seqlens.begin(), batch.cu_seqlens.end()));
  for (int64_t row = 0; row <= o.rows; ++row)
    CHECK(
        std::binary_search(batch.cu_seqlens.begin(), batch.cu_seqlens.end(), static_cast<int32_t>(row * o.row_tokens)));

  std::vector<int32_t> tokens(slots, o.pad), targets(slots, -1), positions(slots, 0);
  int64_t trained = 0, real = 0;
  for (const Segment& s : batch.segments) {
    const Record& r = records[s.piece.record];
    const auto slot = static_cast<int32_t>(s.slot), end = slot + static_cast<int32_t>(s.piece.tokens);
    const auto at = std::lower_bound(batch.cu_seqlens.begin(), batch.cu_seqlens.end(), slot);
    CHECK((at[0] == slot && at[1] == end));
    if (s.damaged) continue;
    CHECK(s.src == r.src);
    for (uint32_t i = 0; i < s.piece.tokens; ++i) {
      const size_t t = static_cast<size_t>(slot) + i, from = s.piece.begin + i;
      tokens[t] = r.tokens[from], positions[t] = static_cast<int32_t>(i);
      const bool target = i + 1 < s.piece.tokens && (r.mask.empty() || r.mask[from + 1]);
      if (target) targets[t] = r.tokens[from + 1];
      trained += target, ++real;
    }
  }
  CHECK(batch.tokens == tokens);
  CHECK(batch.targets == targets);
  CHECK(batch.positions == positions);
  CHECK(batch.trained_tokens == trained);
  CHECK(static_cast<int64_t>(batch.counts.real_tokens) == real + batch.damaged_tokens);
  return trained;
}

}  // namespace

TEST_CASE("packed batches hold every token of every document once an epoch, in place") {
  const Data data(200, 90, 20);
  for (int64_t rows : {1, 3}) {
    for (int64_t row_tokens : {32, 90, 256}) {
      BatchOptions o = options(row_tokens, rows, 2);
      o.long_documents = LongDocuments::split;
      Batches batches(data.file, o);
      std::map<int64_t, std::map<uint64_t, uint32_t>> seen;  // epoch, record: tokens so far
      std::map<int64_t, PackCounts> counts;
      std::map<int64_t, int64_t> number, trained, lost;
      for (const Batch& batch : all(batches)) {
        CHECK(batch.cu_seqlens.size() == static_cast<size_t>(batches.max_documents()) + 1);
        trained[batch.epoch] += check_batch(batch, data.records, o);
        lost[batch.epoch] += batch.lost_targets;
        ++number[batch.epoch];
        counts[batch.epoch].documents += batch.counts.documents;
        counts[batch.epoch].split += batch.counts.split;
        for (const Segment& s : batch.segments) {
          CHECK(s.piece.begin == seen[batch.epoch][s.piece.record]);  // pieces follow each other
          seen[batch.epoch][s.piece.record] += s.piece.tokens;
        }
      }
      uint64_t split = 0;
      for (const Record& r : data.records) split += r.tokens.size() > static_cast<size_t>(row_tokens);
      for (int64_t epoch : {0, 1}) {
        CHECK(seen[epoch].size() == data.records.size());
        for (const auto& [record, tokens] : seen[epoch]) CHECK(tokens == data.records[record].tokens.size());
        CHECK(counts[epoch].documents == data.records.size());
        CHECK(counts[epoch].split == split);
        CHECK(static_cast<uint64_t>(trained[epoch] + lost[epoch]) == data.file->loss_tokens());
        const EpochPlan plan = batches.plan_epoch(epoch);
        CHECK(plan.batches == number[epoch]);
        CHECK(plan.counts.real_tokens == data.file->tokens());
        CHECK(plan.padding_tokens == plan.batches * rows * row_tokens - static_cast<int64_t>(data.file->tokens()));
      }
    }
  }
}

TEST_CASE("rows do not depend on how many make a batch") {
  const Data data(150, 60, 21);
  BatchOptions one = options(128, 1, 1), four = options(128, 4, 1);
  Batches a(data.file, one), b(data.file, four);
  std::vector<int32_t> flat_a, flat_b;
  for (const Batch& batch : all(a)) flat_a.insert(flat_a.end(), batch.tokens.begin(), batch.tokens.end());
  for (const Batch& batch : all(b)) flat_b.insert(flat_b.end(), batch.tokens.begin(), batch.tokens.end());
  REQUIRE(flat_b.size() >= flat_a.size());
  CHECK(std::equal(flat_a.begin(), flat_a.end(), flat_b.begin()));
  CHECK(std::all_of(flat_b.begin() + static_cast<std::ptrdiff_t>(flat_a.size()), flat_b.end(),
                    [&](int32_t token) { return token == four.pad; }));
}

TEST_CASE("resuming at any batch gives the same rest, with and without the thread") {
  const Data data(400, 70, 22);
  const std::pair<int, LongDocuments> ways[] = {{kLookahead, LongDocuments::split},
                                                {kLookahead, LongDocuments::automatic},
                                                {7, LongDocuments::drop},
                                                {7, LongDocuments::truncate},
                                                {1, LongDocuments::split}};
  for (const auto& [lookahead, policy] : ways) {
    BatchOptions o = options(48, 2, 2);
    o.lookahead = lookahead, o.long_documents = policy;
    Batches straight(data.file, o);
    const BatchState start = straight.state();
    const std::vector<Batch> whole = all(straight);
    REQUIRE(whole.size() > 100);
    for (int prefetch : {0, 1, 3}) {
      o.prefetch = prefetch;
      for (size_t at = 0; at <= whole.size(); at += prefetch == 1 ? 1 : 37) {
        Batches resumed(data.file, o);
        const BatchState saved = at == 0 ? start : whole[at - 1].after;
        resumed.restore(BatchState::from_integers(saved.integers()));
        Batch batch;
        const size_t end = std::min(at + 4, whole.size());
        for (size_t i = at; i < end; ++i) {
          REQUIRE(resumed.next(batch));
          REQUIRE(same(batch, whole[i]));
          CHECK(resumed.state() == whole[i].after);
        }
        if (end == whole.size()) CHECK_FALSE(resumed.next(batch));
      }
    }
  }
}

TEST_CASE("batches go back to an earlier state while the thread is ahead") {
  const Data data(100, 50, 23);
  Batches batches(data.file, options(64, 2, 0));
  Batch a, b;
  REQUIRE(batches.next(a));
  const BatchState state = batches.state();
  REQUIRE(batches.next(a));
  for (int i = 0; i < 100; ++i) REQUIRE(batches.next(b));  // epochs without end
  CHECK(b.epoch > 0);
  batches.restore(state);
  REQUIRE(batches.next(b));
  CHECK(same(a, b));
}

TEST_CASE("long documents are split, dropped or refused, never in silence") {
  const Data data(60, 300, 24);
  BatchOptions o = options(100, 2, 1);
  o.long_documents = LongDocuments::drop;
  Batches dropping(data.file, o);
  uint64_t dropped = 0, kept = 0;
  for (const Batch& batch : all(dropping)) dropped += batch.counts.dropped, kept += batch.segments.size();
  const auto is_long = [](const Record& r) { return r.tokens.size() > 100; };
  CHECK(dropped == static_cast<uint64_t>(std::count_if(data.records.begin(), data.records.end(), is_long)));
  CHECK(dropped + kept == data.records.size());
  CHECK(dropping.plan_epoch().counts.dropped == dropped);

  o.long_documents = LongDocuments::error;
  Batches refusing(data.file, o);
  CHECK(error_of([&] { all(refusing); }).find("raise row_tokens") != std::string::npos);

  TemporaryFolder folder;
  write_records(folder.file("a.qubgpu"), {{{1, 2, 3, 4, 5}, {}, 1, 0}, {{6, 7, 8, 9}, {}, 1, 0}});
  o.row_tokens = 3, o.long_documents = LongDocuments::drop;
  Batches none(PacketFile::open(folder.file("a.qubgpu")), o);
  CHECK(error_of([&] { all(none); }).find("no document fits") != std::string::npos);
}

TEST_CASE(
    "long conversations are left out and long texts split, unless asked otherwise; a cut document keeps its "
    "beginning") {
  TemporaryFolder folder;
  std::vector<Record> records = random_records(80, 300, 31);
  for (size_t i = 0; i < records.size(); i += 4) records[i].mask.assign(records[i].tokens.size(), 1);  // trained whole
  for (size_t i = 1; i < records.size(); i += 4) {  // trained only behind a row
    records[i].mask.assign(records[i].tokens.size(), 0);
    for (size_t t = 100; t < records[i].tokens.size(); ++t) records[i].mask[t] = 1;
  }
  write_records(folder.file("a.qubgpu"), records);
  const auto file = PacketFile::open(folder.file("a.qubgpu"));
  const auto targets = [](const Record& r, size_t end) {
    size_t count = r.mask.empty() ? end - 1 : 0;
    for (size_t t = 1; t < end && !r.mask.empty(); ++t) count += r.mask[t];
    return count;
  };
  for (const LongDocuments policy : {LongDocuments::automatic, LongDocuments::truncate}) {
    BatchOptions o = options(100, 2, 1);
    if (policy != BatchOptions().long_documents) o.long_documents = policy;
    std::map<uint64_t, size_t> placed, expected;  // tokens of each record
    uint64_t split = 0, truncated = 0, dropped = 0, trained = 0;
    for (size_t i = 0; i < records.size(); ++i) {
      const size_t tokens = records[i].tokens.size();
      const bool text = targets(records[i], tokens) == tokens - 1;
      const bool cut = policy == LongDocuments::truncate && tokens > 100;
      if (tokens > 100 && (cut ? targets(records[i], 100) == 0 : !text)) {
        ++dropped;
        continue;
      }
      expected[i] = cut ? 100 : tokens;
      split += tokens > 100 && !cut, truncated += cut, trained += targets(records[i], expected[i]);
    }
    REQUIRE((dropped > 5 && (policy == LongDocuments::truncate ? truncated : split) > 5));
    Batches batches(file, o);
    PackCounts counts;
    for (const Batch& batch : all(batches)) {
      check_batch(batch, records, o);
      for (const Segment& s : batch.segments) {
        CHECK(s.piece.begin == placed[s.piece.record]);
        placed[s.piece.record] += s.piece.tokens;
      }
      counts.split += batch.counts.split, counts.dropped += batch.counts.dropped;
      counts.truncated += batch.counts.truncated;
    }
    CHECK(placed == expected);
    const EpochPlan plan = batches.plan_epoch();
    for (const PackCounts& c : {counts, plan.counts})
      CHECK((c.split == split && c.truncated == truncated && c.dropped == dropped));
    CHECK(plan.trained_tokens == trained);
    CHECK(plan.counts.documents == expected.size());
  }
}

TEST_CASE("a damaged document leaves padding, is counted, and too many stop the run") {
  TemporaryFolder folder;
  const std::vector<Record> records = random_records(150, 60, 26);
  write_records(folder.file("a.qubgpu"), records);
  std::string bytes = read_bytes(folder.file("a.qubgpu"));
  size_t offset = kHeaderBytes;
  for (size_t i = 0; i < 3; ++i) {
    bytes[offset + 6] ^= 1;
    offset += record_bytes(records[i].tokens.size(), !records[i].mask.empty());
  }
  write_bytes(folder.file("b.qubgpu"), bytes);
  const auto file = PacketFile::open(folder.file("b.qubgpu"));
  BatchOptions o = options(128, 1, 1);
  o.max_damaged = 0.05;
  Batches tolerant(file, o);
  int64_t damaged = 0;
  for (const Batch& batch : all(tolerant)) check_batch(batch, records, o), damaged += batch.damaged;
  CHECK(damaged == 3);
  CHECK(file->errors().total == 3);
  o.max_damaged = 0.01;
  Batches strict(file, o);
  CHECK(error_of([&] { all(strict); }).find("are damaged") != std::string::npos);
}

TEST_CASE("held-out documents make up exactly what training leaves") {
  const Data data(100, 40, 27);
  BatchOptions o = options(64, 1, 3);
  o.eval_share = 0.2;
  std::vector<int> trained(100), held(100);
  Batches train(data.file, o);
  for (const Batch& batch : all(train))
    for (const Segment& s : batch.segments) ++trained[s.piece.record];
  o.split = Split::eval;
  Batches eval(data.file, o);
  for (const Batch& batch : all(eval))
    for (const Segment& s : batch.segments) ++held[s.piece.record];
  CHECK(std::count(held.begin(), held.end(), 1) == 20);
  for (size_t i = 0; i < 100; ++i) CHECK(trained[i] == (held[i] ? 0 : 3));
}

TEST_CASE("best fit wastes little room") {
  const Data data(5000, 60, 28);
  Batches batches(data.file, options(256, 1, 1));
  const EpochPlan plan = batches.plan_epoch();
  CHECK(static_cast<double>(plan.padding_tokens) < 0.005 * static_cast<double>(data.file->tokens()));
}

TEST_CASE("a row holds no more documents than cu_seqlens has room for") {
  const Data data(300, 3, 29);
  BatchOptions o = options(64, 2, 1);
  o.max_documents = 8;
  Batches batches(data.file, o);
  for (const Batch& batch : all(batches)) {
    check_batch(batch, data.records, o);
    CHECK(batch.segments.size() <= 6);
  }
}

TEST_CASE("wrong options and states are refused") {
  const Data data(10, 40, 30);
  BatchOptions o = options(64, 1, 0);
  const auto wrong = [&](auto change) {
    BatchOptions bad = o;
    change(bad);
    return error_of([&] { Batches batches(data.file, bad); });
  };
  CHECK(wrong([](BatchOptions& b) { b.row_tokens = 1; }).find("row_tokens is 1") != std::string::npos);
  CHECK(wrong([](BatchOptions& b) { b.rows = int64_t{1} << 40; }).find("rows") != std::string::npos);
  CHECK(wrong([](BatchOptions& b) { b.eval_share = 1.5; }).find("eval_share") != std::string::npos);
  CHECK(wrong([](BatchOptions& b) { b.split = Split::eval; }).find("eval_share") != std::string::npos);
  CHECK(wrong([](BatchOptions& b) { b.lookahead = 1000; }).find("lookahead") != std::string::npos);
  CHECK(wrong([](BatchOptions& b) { b.max_documents = 1; }).find("max_documents") != std::string::npos);
  o.vocab = 5, o.pad = 0;
  Batches batches(data.file, o);
  Batch batch;
  CHECK(error_of([&] { batches.next(batch); }).find("the vocabulary ends at 5") != std::string::npos);

  BatchState state = batches.state();
  state.pack.cursor = 11;
  CHECK(error_of([&] { batches.restore(state); }).find("saved position") != std::string::npos);
  state = batches.state(), state.seed = 3;
  CHECK(error_of([&] { batches.restore(state); }).find("seed 3") != std::string::npos);
  CHECK_THROWS_AS(BatchState::from_integers({1, 2, 3}), Error);
  CHECK_THROWS_AS(BatchState::from_integers(std::vector<int64_t>(12, -1)), Error);
}
