#include "engine/packets/scanner.h"
#include "kernels/error.h"
#include "tests/catch.h"
#include "tests/unit/packets_fixture.h"

using namespace qeng;

namespace {

std::vector<uint8_t> stream_of(const std::vector<Record>& records, std::vector<size_t>* starts = nullptr) {
  std::vector<uint8_t> bytes;
  for (const Record& r : records) {
    if (starts) starts->push_back(bytes.size());
    append_record(bytes, r.tokens, r.mask, r.src, r.dst);
  }
  return bytes;
}
bool same(const Record& a, const Record& b) {
  return a.tokens == b.tokens && a.mask == b.mask && a.src == b.src && a.dst == b.dst;
}

}  // namespace

// CRCs by binascii.crc_hqx over the bytes between the start and the sum.
TEST_CASE("a frame is laid out byte for byte as the protocol says") {
  std::vector<uint8_t> bytes;
  const std::vector<int32_t> tokens = {1, 0x01020304, 151645};
  const std::vector<uint8_t> mask = {0, 1, 1};
  append_record(bytes, tokens, mask, 0x03, 0x05);
  const std::vector<uint8_t> expected = {0xAA, 0x03, 0x05, 0x01, 0x00, 0x0C, 0, 0, 0, 1,    1,    2,    3,    4,   0,
                                         0x02, 0x50, 0x5D, 0x1E, 0x45, 0xAA, 3, 5, 8, 0x00, 0x01, 0x06, 0x35, 0x93};
  CHECK(bytes == expected);
}

TEST_CASE("documents of every awkward length come back from bare frames") {
  std::vector<Record> records;
  for (size_t tokens : {1u, 2u, 7u, 8u, 9u, 16382u, 16383u, 16384u, 32766u, 40000u, 524280u, 524281u}) {
    for (bool masked : {false, true}) {
      Record r{std::vector<int32_t>(tokens), std::vector<uint8_t>(masked ? tokens : 0), 2, 3};
      for (size_t i = 0; i < tokens; ++i) r.tokens[i] = static_cast<int32_t>(i * 31 % 150000);
      for (size_t i = 0; i < r.mask.size(); ++i) r.mask[i] = i % 3 == 0;
      records.push_back(std::move(r));
    }
  }
  const std::vector<uint8_t> bytes = stream_of(records);
  RecordScanner scanner(bytes);
  Record record;
  for (const Record& r : records) {
    REQUIRE(scanner.next(record));
    CHECK(same(record, r));
  }
  CHECK_FALSE(scanner.next(record));
  CHECK(scanner.lost() == 0);
  CHECK(scanner.errors().total == 0);
}

TEST_CASE("the frame reader goes on after damage and counts it by source") {
  const std::vector<Record> records = random_records(40, 200, 1);
  std::vector<size_t> starts;
  const std::vector<uint8_t> good = stream_of(records, &starts);
  std::mt19937 random(2);
  for (int trial = 0; trial < 400; ++trial) {
    std::vector<uint8_t> bytes = good;
    const size_t victim = random() % records.size();
    const size_t end = victim + 1 < starts.size() ? starts[victim + 1] : bytes.size();
    const size_t at = starts[victim] + random() % (end - starts[victim]);
    bytes[at] = static_cast<uint8_t>(bytes[at] ^ 1 << random() % 8);
    RecordScanner scanner(bytes);
    Record record;
    std::vector<Record> seen;
    while (scanner.next(record)) seen.push_back(record);
    // Everything but the victim survives, but for a neighbour whose mask may have been what was lost.
    CHECK(seen.size() + 2 >= records.size());
    CHECK(seen.size() < records.size());
    CHECK(scanner.errors().total >= 1);
    size_t next = 0;
    for (const Record& r : seen) {
      while (next < records.size() && !same(r, records[next])) ++next;
      REQUIRE(next < records.size());
      CHECK(next != victim);
    }
    const size_t in_header = at - starts[victim];
    if (in_header > 6 && records[victim].mask.empty()) CHECK(scanner.errors().by_source[records[victim].src] == 1);
  }
}

TEST_CASE("any bytes at all are read without a crash") {
  std::mt19937 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<uint8_t> bytes(random() % 3000);
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(random() % 3 == 0 ? 0xAA : random() % 10);
    RecordScanner scanner(bytes);
    Record record;
    while (scanner.next(record)) CHECK(record.tokens.empty() == (record.type != FrameType::token_ids));
  }
}

TEST_CASE("what a record cannot hold is refused") {
  std::vector<uint8_t> bytes;
  CHECK_THROWS_AS(append_record(bytes, {}, {}, 1, 0), Error);
  CHECK_THROWS_AS(append_record(bytes, std::vector<int32_t>{1, -2}, {}, 1, 0), Error);
  CHECK_THROWS_AS(append_record(bytes, std::vector<int32_t>{1, 2}, std::vector<uint8_t>{1}, 1, 0), Error);
  CHECK_THROWS_AS(append_frame(bytes, 1, 0, FrameType::utf8, std::vector<uint8_t>(65536)), Error);
  CHECK(bytes.empty());
}
