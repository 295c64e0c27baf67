// engine/packets/statistics.h on a dataset whose every document is known.
#include <unistd.h>

#include <filesystem>

#include "engine/packets/packet_writer.h"
#include "engine/packets/statistics.h"
#include "tests/catch.h"

using namespace qeng;

TEST_CASE("statistics count lengths, answers and duplicates, whatever the number of threads") {
  const auto path =
      std::filesystem::temp_directory_path() / ("qeng_statistics_" + std::to_string(::getpid()) + ".qubgpu");
  constexpr int kEnd = 9;
  {
    PacketWriter writer(path.string());
    using Tokens = std::vector<int32_t>;
    using Mask = std::vector<uint8_t>;
    for (int round = 0; round < 1000; ++round) {                                     // several chunks
      writer.add(Tokens{1, 2, round, kEnd}, Mask{0, 1, 1, 1}, packet_source::chat);  // whole, own content
      writer.add(Tokens{1, 2, 3, 4, 5}, Mask{0, 0, 1, 1, 1}, packet_source::chat);   // truncated; 999 duplicates
      writer.add(Tokens{1, kEnd, 2, 7, kEnd, 8}, Mask{0, 1, 0, 1, 1, 0},
                 packet_source::instruction);                            // an empty answer and one
      writer.add(Tokens{5, 6}, Mask{0, 0}, packet_source::text_corpus);  // nothing trained
    }
    writer.add(Tokens{70000, kEnd}, {}, 0x42);  // no mask: one answer, whose first token is no target
    writer.finish();
  }
  const auto file = PacketFile::open(path.string());
  for (const int threads : {1, 2, 7}) {
    const PacketStatistics found = packet_statistics(*file, {{kEnd}, threads});
    CHECK(found.total.records == 4001);
    CHECK(found.total.tokens == 1000 * (4 + 5 + 6 + 2) + 2);
    CHECK(found.total.trained == 1000 * (3 + 3 + 3) + 1);
    CHECK(found.total.untrained == 1000);
    CHECK(found.total.answers == 1000 * (1 + 1 + 2) + 1);
    CHECK(found.total.empty_answers == 1000);
    CHECK(found.total.truncated == 1000);
    CHECK(found.total.duplicates == 3 * 999);
    CHECK(found.total.duplicate_tokens == 999 * (5 + 6 + 2));
    CHECK(found.total.shortest == 2);
    CHECK(found.total.longest == 6);
    CHECK(found.highest_token == 70000);
    CHECK(found.sources.at(packet_source::chat).duplicates == 999);
    CHECK(found.sources.at(0x42).records == 1);
    CHECK(found.lengths == std::map<uint32_t, uint64_t>{{2, 1001}, {4, 1000}, {5, 1000}, {6, 1000}});
    CHECK(found.trained_lengths == std::map<uint32_t, uint64_t>{{0, 1000}, {1, 1}, {3, 3000}});
    REQUIRE(found.groups.size() == 3);
    CHECK((found.groups[0].records == 1000 && found.groups[0].first == 1 && found.groups[0].tokens == 5));
  }
  const PacketStatistics unjudged = packet_statistics(*file);
  CHECK(unjudged.total.truncated == 0);
  CHECK(unjudged.total.empty_answers == 0);
  std::filesystem::remove(path);
}
