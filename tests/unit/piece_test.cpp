#include "engine/packets/piece.h"

#include "engine/packets/frame.h"
#include "tests/catch.h"
#include "tests/unit/packets_fixture.h"

using namespace qeng;

// Against the definition: targets[t] = tokens[t + 1] where t + 1 is of the piece and is trained, else -1.
TEST_CASE("a piece lies in its slots as the definition says, whatever its place in the document") {
  std::mt19937 random(1);
  for (int trial = 0; trial < 400; ++trial) {
    const int longest = trial % 50 == 0 ? 600000 : trial % 5 == 0 ? 40000 : 100;
    const Record r = random_records(1, longest, random())[0];
    std::vector<uint8_t> stored;
    append_record(stored, r.tokens, r.mask, r.src, r.dst);
    RecordInfo info;
    info.tokens = static_cast<uint32_t>(r.tokens.size()), info.masked = !r.mask.empty();
    const auto begin = static_cast<uint32_t>(trial % 3 == 0 ? 0 : random() % info.tokens);
    const auto count = static_cast<uint32_t>(1 + random() % (info.tokens - begin));

    std::vector<int32_t> tokens(count + 2, -7), targets(count + 2, -7), positions(count + 2, -7);
    const PieceCounts counts = lay_piece(stored, info, begin, count, {&tokens[1], &targets[1], &positions[1]});
    uint32_t trained = 0, wrong = 0, largest = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const bool target = i + 1 < count && (r.mask.empty() || r.mask[begin + i + 1]);
      wrong += tokens[i + 1] != r.tokens[begin + i];
      wrong += positions[i + 1] != static_cast<int32_t>(i);
      wrong += targets[i + 1] != (target ? r.tokens[begin + i + 1] : -1);
      trained += target, largest = std::max(largest, static_cast<uint32_t>(r.tokens[begin + i]));
    }
    CHECK(wrong == 0);
    CHECK(counts.trained == trained);
    CHECK(counts.largest == largest);
    CHECK(is_target(stored, info, begin) == (r.mask.empty() || r.mask[begin] != 0));
    for (const auto* slots : {&tokens, &targets, &positions}) CHECK((slots->front() == -7 && slots->back() == -7));

    std::vector<int32_t> all;
    std::vector<uint8_t> mask;
    decode_document(stored, info, all, mask);
    CHECK(all == r.tokens);
    CHECK(mask == r.mask);
  }
}
