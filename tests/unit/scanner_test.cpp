#include "engine/packets/scanner.h"

#include <algorithm>

#include "engine/packets/payload.h"
#include "tests/catch.h"
#include "tests/unit/packets_fixture.h"

using namespace qeng;

namespace {

// Bytes that arrive a few bytes at a time.
class Trickle : public ByteSource {
 public:
  Trickle(std::vector<uint8_t> bytes, unsigned seed) : bytes_(std::move(bytes)), random_(seed) {}
  size_t read(uint8_t* into, size_t bytes) override {
    const size_t count = std::min({bytes, bytes_.size() - at_, size_t{1} + random_() % 50000});
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(at_), count, into);
    at_ += count;
    return count;
  }
  size_t given() const { return at_; }

 private:
  std::vector<uint8_t> bytes_;
  std::mt19937 random_;
  size_t at_ = 0;
};

struct Seen {
  std::vector<std::vector<int32_t>> documents;
  uint64_t errors, skipped, lost;
  bool operator==(const Seen&) const = default;
};
Seen read_all(RecordScanner scanner) {
  Seen seen;
  for (Record record; scanner.next(record);) seen.documents.push_back(record.tokens);
  seen.errors = scanner.errors().total, seen.skipped = scanner.skipped_bytes(), seen.lost = scanner.lost();
  return seen;
}

}  // namespace

TEST_CASE("bytes that trickle in are read as those in memory, damaged or not") {
  std::mt19937 random(1);
  for (int trial = 0; trial < 12; ++trial) {
    std::vector<uint8_t> bytes;
    for (const Record& r : random_records(60, trial % 3 == 0 ? 60000 : 300, random()))
      append_record(bytes, r.tokens, r.mask, r.src, r.dst);
    const std::vector<uint8_t> text(40000, 'x');
    append_payload(bytes, FrameType::utf8, text, 1, 0);
    for (int flips = trial % 4; flips > 0; --flips) bytes[random() % bytes.size()] ^= 4;
    const Seen whole = read_all(RecordScanner(bytes));
    CHECK(read_all(RecordScanner(std::make_unique<Trickle>(bytes, random()))) == whole);
    CHECK((whole.errors > 0) == (trial % 4 > 0));
  }
}

TEST_CASE("damage longer than the window is skipped, and what follows is found") {
  std::vector<uint8_t> bytes(3 * kResyncBytes, 0xAA);
  append_record(bytes, std::vector<int32_t>{1, 2, 3}, {}, 1, 0);
  const Seen seen = read_all(RecordScanner(std::make_unique<Trickle>(bytes, 2)));
  REQUIRE(seen.documents.size() == 1);
  CHECK(seen.documents[0] == std::vector<int32_t>{1, 2, 3});
  CHECK(seen.skipped == 3 * kResyncBytes);
  CHECK(seen.errors == 1);
}

TEST_CASE("a frame of a live pipe is there before the next one comes") {
  std::vector<uint8_t> bytes, later;
  append_frame(bytes, 1, 0, FrameType::utf8, std::vector<uint8_t>(100, 'a'));
  append_frame(later, 1, 0, FrameType::utf8, std::vector<uint8_t>(100, 'b'));
  class Live : public ByteSource {
   public:
    explicit Live(std::vector<uint8_t> bytes) : bytes_(std::move(bytes)) {}
    size_t read(uint8_t* into, size_t) override {
      REQUIRE(!given_);  // a pipe would wait here
      given_ = true;
      std::copy(bytes_.begin(), bytes_.end(), into);
      return bytes_.size();
    }

   private:
    std::vector<uint8_t> bytes_;
    bool given_ = false;
  };
  FrameScanner scanner(std::make_unique<Live>(bytes));
  Frame frame;
  REQUIRE(scanner.next(frame));
  CHECK(frame.payload.size() == 100);
}
