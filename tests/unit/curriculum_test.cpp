// Filters, curricula, CRC-Drop and rows by destination.
#include <map>
#include <set>

#include "engine/packets/batches.h"
#include "engine/train/source_loss.h"
#include "tests/catch.h"
#include "tests/unit/packets_fixture.h"

using namespace qeng;

namespace {

struct Data {
  TemporaryFolder folder;
  std::vector<Record> records;
  std::shared_ptr<const PacketFile> file;
  explicit Data(std::vector<Record> list) : records(std::move(list)) {
    write_records(folder.file("a.qubgpu"), records);
    file = PacketFile::open(folder.file("a.qubgpu"));
  }
};

// `counts` records of the sources 1, 2, ..., in turn while there are any.
std::vector<Record> by_source(std::vector<int> counts, int tokens) {
  std::vector<Record> records;
  for (bool more = true; more;) {
    more = false;
    for (size_t s = 0; s < counts.size(); ++s)
      if (counts[s]-- > 0) {
        records.push_back({std::vector<int32_t>(static_cast<size_t>(1 + static_cast<int>(records.size()) % tokens), 7),
                           {},
                           static_cast<uint8_t>(s + 1),
                           0});
        more = true;
      }
  }
  return records;
}

BatchOptions options(int64_t row_tokens, int64_t rows, int64_t epochs) {
  BatchOptions o;
  o.row_tokens = row_tokens, o.rows = rows, o.epochs = epochs, o.seed = 5;
  return o;
}

std::vector<Batch> all(Batches& batches) {
  std::vector<Batch> out;
  for (Batch batch; batches.next(batch);) out.push_back(batch);
  return out;
}

SourceWeights constant(std::vector<double> weights) {
  return [weights](int64_t, const std::vector<uint8_t>&) { return weights; };
}

bool same(const Batch& a, const Batch& b) {
  return a.tokens == b.tokens && a.targets == b.targets && a.cu_seqlens == b.cu_seqlens && a.after == b.after;
}

}  // namespace

TEST_CASE("a filter leaves the records of its sources, and holds out what was held out before") {
  const Data data(random_records(300, 40, 51));
  for (Split split : {Split::train, Split::eval}) {
    BatchOptions o = options(64, 2, 1);
    o.split = split, o.eval_share = 0.2;
    std::multiset<uint64_t> everything, kept;
    Batches unfiltered(data.file, o);
    for (const Batch& batch : all(unfiltered))
      for (const Segment& s : batch.segments)
        if (s.src == 2 || s.src == 4) everything.insert(s.piece.record);
    o.sources = {4, 2};
    Batches filtered(data.file, o);
    for (const Batch& batch : all(filtered))
      for (const Segment& s : batch.segments) kept.insert(s.piece.record);
    CHECK(kept == everything);
    CHECK(kept.size() > 5);
    const EpochPlan plan = filtered.plan_epoch();
    CHECK(plan.by_source[2] + plan.by_source[4] == kept.size());
    CHECK(plan.by_source[1] == 0);
  }
  BatchOptions o = options(64, 2, 1);
  o.sources = {1, 2, 3, 4};
  Batches same_as_all(data.file, o);
  o.sources.clear();
  Batches unfiltered(data.file, o);
  const auto a = all(same_as_all), b = all(unfiltered);
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK(same(a[i], b[i]));
  o.sources = {99};
  CHECK(error_of([&] { Batches batches(data.file, o); }).find("no training record") != std::string::npos);
}

TEST_CASE("observed shares match the weights within 1 % over 100,000 records, constant or changing") {
  const Data data(by_source({3000, 500, 1200, 90}, 8));
  const auto shares_of = [&](SourceWeights weights, int64_t batches_per_step) {
    BatchOptions o = options(1024, 4, 0);
    o.weights = std::move(weights), o.batches_per_step = batches_per_step;
    Batches batches(data.file, o);
    std::array<double, 256> counts{};
    double total = 0;
    for (Batch batch; total < 100000;) {
      REQUIRE(batches.next(batch));
      for (const auto& [source, part] : losses_by_source(batch, {}))
        counts[source] += static_cast<double>(part.documents), total += static_cast<double>(part.documents);
    }
    for (double& count : counts) count /= total;
    return counts;
  };
  const std::vector<double> weights = {0.1, 0.6, 0.05, 0.25};
  const auto fixed = shares_of(constant({10, 60, 5, 25}), 1);
  for (size_t i = 0; i < 4; ++i) CHECK(std::abs(fixed[i + 1] - weights[i]) < 0.01 * weights[i]);
  const auto without = shares_of(constant({1, 0, 0, 3}), 1);
  CHECK(std::abs(without[1] - 0.25) < 0.0025);
  CHECK((without[2] == 0 && without[3] == 0));
  // Source 1 gives way to source 2 over the run. The lookahead draws 256 records before they are placed.
  BatchOptions o = options(1024, 4, 0);
  const auto second = [](int64_t step) { return std::min(1.0, static_cast<double>(step) / 50); };
  o.batches_per_step = 2;
  o.weights = [&](int64_t step, const std::vector<uint8_t>&) {
    return std::vector<double>{1 - second(step), second(step), 0, 0};
  };
  Batches batches(data.file, o);
  double total = 0, seen = 0, expected = 0;
  Batch batch;
  for (int64_t number = 0; total < 100000; ++number) {
    REQUIRE(batches.next(batch));
    double documents = 0;
    for (const auto& [source, part] : losses_by_source(batch, {})) {
      CHECK(source <= 2);
      documents += static_cast<double>(part.documents);
      if (source == 2) seen += static_cast<double>(part.documents);
    }
    total += documents, expected += documents * second(number / 2);
  }
  CHECK(expected > 0.3 * total);
  CHECK(std::abs(seen - expected) < 0.01 * expected);
}

TEST_CASE("each source of a curriculum gives every record once before any twice") {
  const Data data(by_source({40, 15, 7}, 20));
  BatchOptions o = options(100, 2, 0);
  o.weights = constant({1, 2, 3}), o.prefetch = 0;
  Batches batches(data.file, o);
  std::map<uint64_t, int> seen;
  for (Batch batch; batches.state().epoch < 6;) {
    REQUIRE(batches.next(batch));
    for (const Segment& s : batch.segments) ++seen[s.piece.record];
  }
  std::map<uint8_t, std::pair<int, int>> range;  // of each source: fewest and most
  for (size_t i = 0; i < data.records.size(); ++i) {
    const uint8_t source = data.records[i].src;
    if (!range.count(source)) range[source] = {1 << 30, 0};
    range[source] = {std::min(range[source].first, seen[i]), std::max(range[source].second, seen[i])};
  }
  // An epoch is packed to its end, so no more than the epoch of the source that is under way differs.
  for (const auto& [source, counts] : range) CHECK(counts.second - counts.first <= 1);
  CHECK(range[3].first > 3 * range[1].second);
}

TEST_CASE("a curriculum resumes at any batch, with and without the thread") {
  const Data data(random_records(300, 60, 52));
  BatchOptions o = options(48, 2, 3);
  o.drop = 0.15, o.batches_per_step = 3, o.lookahead = 40;
  o.weights = [](int64_t step, const std::vector<uint8_t>& sources) {
    std::vector<double> weights;
    for (size_t i = 0; i < sources.size(); ++i)
      weights.push_back(static_cast<double>((step + static_cast<int64_t>(i)) % 4));
    return weights;
  };
  o.prefetch = 0;
  Batches straight(data.file, o);
  const BatchState start = straight.state();
  const std::vector<Batch> whole = all(straight);
  REQUIRE(whole.size() > 100);
  for (int prefetch : {0, 3}) {
    o.prefetch = prefetch;
    for (size_t at = 0; at <= whole.size(); at += 5) {
      Batches resumed(data.file, o);
      const BatchState saved = at == 0 ? start : whole[at - 1].after;
      resumed.restore(BatchState::from_integers(saved.integers()));
      Batch batch;
      for (size_t i = at; i < std::min(at + 8, whole.size()); ++i) {
        REQUIRE(resumed.next(batch));
        REQUIRE(same(batch, whole[i]));
      }
    }
  }
  // A state of other sources, or a damaged one, is refused.
  BatchState state = whole[50].after;
  ++state.mix.drawn[0];
  CHECK(error_of([&] { straight.restore(state); }).find("saved position") != std::string::npos);
  state = whole[50].after, state.mix.window[0] = 200;
  CHECK(error_of([&] { straight.restore(state); }).find("saved position") != std::string::npos);
  state = whole[50].after, state.mix = {};
  CHECK(error_of([&] { straight.restore(state); }).find("0 mixed sources") != std::string::npos);
  std::vector<int64_t> integers = whole[50].after.integers();
  integers.pop_back();
  CHECK(error_of([&] { BatchState::from_integers(integers); }).find("a batch state is more") != std::string::npos);
}

TEST_CASE("wrong weights are told with their step, when that step is due") {
  const Data data(by_source({20, 20}, 20));
  BatchOptions o = options(50, 1, 0);
  for (int prefetch : {0, 2}) {
    o.prefetch = prefetch;
    const auto message = [&](double weight) {
      o.weights = [weight](int64_t step, const std::vector<uint8_t>&) {
        return std::vector<double>{step < 4 ? 1.0 : weight, 0};
      };
      Batches batches(data.file, o);
      Batch batch;
      for (int i = 0; i < 4; ++i) REQUIRE(batches.next(batch));
      return error_of([&] { batches.next(batch); });
    };
    CHECK(message(0).find("weights at step 4: the weights of all sources add up to 0") != std::string::npos);
    CHECK(message(-1).find("step 4: the weight of source 0x01 is -1") != std::string::npos);
    CHECK(message(NAN).find("step 4") != std::string::npos);
  }
  o.split = Split::eval, o.eval_share = 0.5;
  CHECK(error_of([&] { Batches batches(data.file, o); }).find("are of training") != std::string::npos);
}

TEST_CASE("CRC-Drop leaves out its share of each epoch, other records each time, and no room for them") {
  const Data data(random_records(4000, 30, 53));
  BatchOptions o = options(256, 2, 3);
  o.drop = 0.1;
  Batches batches(data.file, o);
  std::map<int64_t, std::set<uint64_t>> placed;
  std::map<int64_t, uint64_t> dropped;
  std::map<int64_t, int64_t> slots, real;
  for (const Batch& batch : all(batches)) {
    for (const Segment& s : batch.segments) placed[batch.epoch].insert(s.piece.record);
    dropped[batch.epoch] += batch.counts.crc_dropped;
    slots[batch.epoch] += 512, real[batch.epoch] += static_cast<int64_t>(batch.counts.real_tokens);
    CHECK(batch.damaged == 0);
  }
  for (int64_t epoch : {0, 1, 2}) {
    CHECK(placed[epoch].size() + dropped[epoch] == 4000);
    CHECK(std::abs(static_cast<double>(dropped[epoch]) - 400) < 95);  // five standard deviations
    CHECK(static_cast<double>(slots[epoch] - real[epoch]) < 0.02 * static_cast<double>(slots[epoch]));
    CHECK(batches.plan_epoch(epoch).counts.crc_dropped == dropped[epoch]);
  }
  CHECK(placed[0] != placed[1]);
  size_t twice = 0;
  for (size_t i = 0; i < 4000; ++i) twice += !placed[0].count(i) && !placed[1].count(i);
  CHECK(std::abs(static_cast<double>(twice) - 40) < 32);  // independent from epoch to epoch

  const Data tiny(by_source({2}, 5));  // most epochs of it are dropped whole
  o = options(16, 1, 200), o.drop = 0.9;
  Batches rare(tiny.file, o);
  uint64_t documents = 0;
  for (const Batch& batch : all(rare)) documents += batch.counts.documents;
  CHECK((documents > 10 && documents < 90));
  o.drop = 1;
  CHECK(error_of([&] { Batches none(tiny.file, o); }).find("drop is 1") != std::string::npos);
}

TEST_CASE("routed batches hold one destination each, and every document once") {
  std::vector<Record> records = random_records(600, 70, 54);
  for (size_t i = 0; i < records.size(); ++i) records[i].dst = i % 50 == 0 ? 3 : i % 3 == 0 ? 2 : 0;
  const Data data(records);
  for (int64_t rows : {1, 3}) {
    BatchOptions o = options(48, rows, 2);
    o.route = true, o.long_documents = LongDocuments::split;
    Batches batches(data.file, o);
    std::map<int64_t, std::map<uint64_t, uint32_t>> seen;
    std::map<uint8_t, int> number;
    int64_t epoch_batches = 0;
    const std::vector<Batch> whole = all(batches);
    for (const Batch& batch : whole) {
      ++number[batch.dst], epoch_batches += batch.epoch == 0;
      for (const Segment& s : batch.segments) {
        CHECK(s.dst == batch.dst);
        CHECK(s.piece.begin == seen[batch.epoch][s.piece.record]);
        seen[batch.epoch][s.piece.record] += s.piece.tokens;
      }
    }
    CHECK(number.size() == 3);
    for (int64_t epoch : {0, 1}) {
      CHECK(seen[epoch].size() == records.size());
      for (const auto& [record, tokens] : seen[epoch]) CHECK(tokens == records[record].tokens.size());
    }
    const EpochPlan plan = batches.plan_epoch();
    CHECK(plan.batches == epoch_batches);
    CHECK(plan.by_destination[3] == 12);
    for (size_t at = 1; at < whole.size(); at += 9) {
      Batches resumed(data.file, o);
      resumed.restore(BatchState::from_integers(whole[at - 1].after.integers()));
      Batch batch;
      REQUIRE(resumed.next(batch));
      CHECK(same(batch, whole[at]));
    }
  }
}

TEST_CASE("losses by source are the sums over each source's targets") {
  const Data data(random_records(50, 30, 55));
  BatchOptions o = options(128, 2, 1);
  Batches batches(data.file, o);
  Batch batch;
  REQUIRE(batches.next(batch));
  std::vector<float> nll(256);
  for (size_t i = 0; i < nll.size(); ++i) nll[i] = static_cast<float>(i);
  double total = 0, sum = 0;
  int64_t trained = 0;
  for (size_t i = 0; i < nll.size(); ++i)
    if (batch.targets[i] >= 0) total += static_cast<double>(i);
  for (const auto& [source, part] : losses_by_source(batch, nll)) sum += part.nll, trained += part.trained_tokens;
  CHECK(sum == total);
  CHECK(trained == batch.trained_tokens);
}
