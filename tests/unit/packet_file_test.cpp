#include "engine/packets/packet_file.h"

#include <cstdio>
#include <cstring>

#include "kernels/error.h"
#include "tests/catch.h"
#include "tests/unit/packets_fixture.h"

using namespace qeng;

namespace {

void check_equal(const PacketFile& file, const std::vector<Record>& records) {
  REQUIRE(file.records() == records.size());
  std::vector<int32_t> tokens;
  std::vector<uint8_t> mask;
  for (size_t i = 0; i < records.size(); ++i) {
    REQUIRE(file.read(i, tokens, mask));
    CHECK(tokens == records[i].tokens);
    CHECK(mask == records[i].mask);
    const RecordInfo info = file.info(i);
    CHECK(info.tokens == tokens.size());
    CHECK(info.src == records[i].src);
    CHECK(info.dst == records[i].dst);
    CHECK(info.masked == !mask.empty());
    uint32_t trained = 0;
    for (size_t t = 1; t < tokens.size(); ++t) trained += mask.empty() || mask[t];
    CHECK(info.loss_tokens == trained);
  }
}

// Puts right every checksum of a file whose header, index or meta data was changed: what a liar would write.
std::string reseal(std::string bytes) {
  ContainerHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.index_offset <= bytes.size())
    header.tail_hash = xxh3(bytes.data() + header.index_offset, bytes.size() - header.index_offset);
  return header_bytes(header) + bytes.substr(kHeaderBytes);
}

// Opens and reads all there is; a clear error is as good as a result.
bool opens(const std::string& path) {
  try {
    const auto file = PacketFile::open(path);
    std::vector<int32_t> tokens;
    std::vector<uint8_t> mask;
    for (uint64_t i = 0; i < file->records(); ++i) file->read(i, tokens, mask);
    file->verify();
    return true;
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find(path) == 0);
    return false;
  }
}

}  // namespace

TEST_CASE("a packet file gives back the documents, masks, sources and meta data") {
  TemporaryFolder folder;
  std::vector<Record> records = random_records(300, 400, 4);
  for (Record& r : random_records(6, 60000, 5)) records.push_back(r);  // over several frames and blocks
  for (CrcVariant variant : {CrcVariant::ccitt_false, CrcVariant::xmodem}) {
    write_records(folder.file("a.qubgpu"), records, variant);
    const auto file = PacketFile::open(folder.file("a.qubgpu"));
    check_equal(*file, records);
    CHECK(file->meta()["tokenizer"]["name"] == "test");
    uint64_t counted = 0;
    for (const auto& [src, count] : file->meta()["counts"].items()) counted += count["tokens"].get<uint64_t>();
    CHECK(counted == file->tokens());
    CHECK(file->verify().ok());
    CHECK(file->errors().total == 0);
    CHECK_THROWS_AS(file->info(records.size()), Error);
  }
}

TEST_CASE("an empty packet file is a packet file") {
  TemporaryFolder folder;
  write_records(folder.file("a.qubgpu"), {});
  CHECK(PacketFile::open(folder.file("a.qubgpu"))->records() == 0);
}

TEST_CASE("a packet file appears when it is finished, and an abandoned one leaves nothing") {
  TemporaryFolder folder;
  const auto count = [&] { return std::distance(std::filesystem::directory_iterator(folder.path), {}); };
  {
    PacketWriter writer(folder.file("a.qubgpu"));
    writer.add(std::vector<int32_t>{1, 2, 3});
    CHECK_FALSE(std::filesystem::exists(folder.file("a.qubgpu")));
  }
  CHECK(count() == 0);
  PacketWriter writer(folder.file("a.qubgpu"));
  writer.add(std::vector<int32_t>{1, 2, 3});
  writer.finish();
  CHECK(count() == 1);
  CHECK_THROWS_AS(writer.add(std::vector<int32_t>{1}), Error);
  CHECK_THROWS_AS(PacketWriter(folder.file("missing/a.qubgpu")), Error);
}

TEST_CASE("a damaged frame is skipped, counted by source and named by verify") {
  TemporaryFolder folder;
  const std::vector<Record> records = random_records(50, 100, 6);
  write_records(folder.file("a.qubgpu"), records);
  std::string bytes = read_bytes(folder.file("a.qubgpu"));
  const size_t victim = 17;
  size_t offset = kHeaderBytes;
  for (size_t i = 0; i < victim; ++i) offset += record_bytes(records[i].tokens.size(), !records[i].mask.empty());
  bytes[offset + 8] ^= 1;
  write_bytes(folder.file("b.qubgpu"), bytes);
  const auto file = PacketFile::open(folder.file("b.qubgpu"));
  std::vector<int32_t> tokens;
  std::vector<uint8_t> mask;
  for (size_t i = 0; i < records.size(); ++i) CHECK(file->read(i, tokens, mask) == (i != victim));
  CHECK(file->errors().total == 1);
  CHECK(file->errors().by_source[records[victim].src] == 1);
  const PacketReport report = file->verify();
  CHECK_FALSE(report.ok());
  CHECK(report.bad_blocks == 1);
  REQUIRE(report.damage.size() == 1);
  CHECK(report.damage[0].record == victim);
  CHECK(report.damage[0].offset == offset);
  CHECK(report.damage[0].src == records[victim].src);
  CHECK(report.bad_offsets == std::vector<uint64_t>{kHeaderBytes});
}

TEST_CASE("truncated, foreign and lying packet files are refused by name") {
  TemporaryFolder folder;
  write_records(folder.file("a.qubgpu"), random_records(20, 50, 7));
  const std::string good = read_bytes(folder.file("a.qubgpu"));
  const std::string path = folder.file("b.qubgpu");
  const auto refused = [&](const std::string& bytes, const char* why) {
    write_bytes(path, bytes);
    CHECK(error_of([&] { PacketFile::open(path); }).find(why) != std::string::npos);
  };
  refused("", "not a .qubgpu file");
  refused("PK\3\4 something else entirely", "not a .qubgpu file");
  refused(good.substr(0, 100), "truncated");
  refused(good.substr(0, good.size() - 1), "truncated");
  refused(good + "x", "truncated or damaged");
  std::string other = good;
  other[7] = 2;
  refused(other, "version 2");
  other = good, other[20] ^= 1;
  refused(other, "header's checksum");
  other = good, other[good.size() - 3] ^= 1;
  refused(other, "index and meta data");
  CHECK(error_of([&] { PacketFile::open(folder.file("none")); }).find(folder.file("none")) != std::string::npos);

  // Header fields with right checksums and wrong values: every 8-byte field, values near every kind of edge.
  for (size_t field = 16; field < 96; field += 8) {
    for (uint64_t value : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 31, uint64_t{1} << 40, UINT64_MAX / 24,
                           UINT64_MAX - 4095, UINT64_MAX}) {
      other = good;
      std::memcpy(&other[field], &value, 8);
      if (other == good) continue;
      write_bytes(path, reseal(other));
      CHECK_FALSE(opens(path));
    }
  }
}

TEST_CASE("a packet file with any byte flipped is refused or read without a crash") {
  TemporaryFolder folder;
  write_records(folder.file("a.qubgpu"), random_records(12, 40, 8));
  const std::string good = read_bytes(folder.file("a.qubgpu"));
  const std::string path = folder.file("b.qubgpu");
  std::mt19937 random(9);
  int opened = 0;
  for (int trial = 0; trial < 1500; ++trial) {
    std::string bytes = good;
    for (unsigned flips = 1 + random() % 3; flips > 0; --flips) {
      // Half the flips fall on the header's fields, the index and the tail.
      const size_t at = random() % 2 ? random() % 112 : kHeaderBytes + random() % (bytes.size() - kHeaderBytes);
      bytes[at] = static_cast<char>(bytes[at] ^ 1 << random() % 8);
    }
    write_bytes(path, random() % 2 ? reseal(bytes) : bytes);
    opened += opens(path);
  }
  CHECK(opened > 0);  // damage to frames alone does not refuse the file
}

TEST_CASE("a packet file that shrinks while it is open is an error that names it") {
  TemporaryFolder folder;
  const std::string path = folder.file("a.qubgpu");
  const auto named = [&](auto f) { CHECK(error_of(f).find(path + ": the file became shorter") == 0); };
  for (bool verify : {false, true}) {
    write_records(path, random_records(2000, 400, 12));
    const auto file = PacketFile::open(path);
    std::vector<int32_t> tokens;
    std::vector<uint8_t> mask;
    CHECK(file->read(0, tokens, mask));
    std::filesystem::resize_file(path, 3 * kHeaderBytes);
    if (verify) named([&] { file->verify(); });
    named([&] { file->read(1500, tokens, mask); });
    named([&] { file->read(0, tokens, mask); });  // nothing of it is trusted any more
    PacketWriter writer(folder.file("b.qubgpu"));
    named([&] { writer.copy(*file, 0); });
  }
}

TEST_CASE("verify tells its progress, and an error from there ends it") {
  TemporaryFolder folder;
  write_records(folder.file("a.qubgpu"), random_records(30, 60000, 13));
  const auto file = PacketFile::open(folder.file("a.qubgpu"));
  uint64_t last = 0;
  CHECK(file->verify([&](uint64_t done) { last = done; }).ok());
  CHECK(last <= file->frames_bytes());
}

TEST_CASE("verify by pieces finds what verify finds, each record in one piece") {
  TemporaryFolder folder;
  const std::vector<Record> records = random_records(30, 60000, 13);
  write_records(folder.file("a.qubgpu"), records);
  std::string bytes = read_bytes(folder.file("a.qubgpu"));
  size_t offset = kHeaderBytes;
  for (size_t i = 0; i < 30; ++i) {
    if (i % 7 == 3) bytes[offset + 9] ^= 1;
    offset += record_bytes(records[i].tokens.size(), !records[i].mask.empty());
  }
  write_bytes(folder.file("b.qubgpu"), bytes);
  const auto file = PacketFile::open(folder.file("b.qubgpu"));
  const PacketReport whole = file->verify();
  REQUIRE((whole.blocks > 3 && whole.bad_records == 4 && whole.bad_blocks >= 2));
  std::vector<uint64_t> damaged, offsets;
  for (uint64_t first = 0; first < whole.blocks; first += 2) {
    const PacketReport part = file->verify({}, first, 2);
    CHECK((part.blocks == whole.blocks && part.records == whole.records));
    for (const auto& each : part.damage) damaged.push_back(each.record);
    offsets.insert(offsets.end(), part.bad_offsets.begin(), part.bad_offsets.end());
  }
  CHECK(damaged == std::vector<uint64_t>{3, 10, 17, 24});
  CHECK(offsets == whole.bad_offsets);
  CHECK(file->verify({}, whole.blocks + 5, 2).ok());
}

// An independent reader in Python (tests/packets_decoder.py) sees the same documents. Skipped where there is no
// python3.
TEST_CASE("the Python decoder reads the same documents") {
  if (std::system("python3 -c pass >/dev/null 2>&1") != 0) {
    std::printf("SKIPPED: the Python decoder of packets: no python3 here\n");
    return;
  }
  TemporaryFolder folder;
  std::vector<Record> records = random_records(30, 200, 10);
  for (Record& r : random_records(2, 60000, 11)) records.push_back(r);
  write_records(folder.file("a.qubgpu"), records);
  const std::string command = std::string("python3 ") + QENG_SOURCE_DIR + "/tests/packets_decoder.py " +
                              folder.file("a.qubgpu") + " >" + folder.file("out.json");
  REQUIRE(std::system(command.c_str()) == 0);
  const auto seen = nlohmann::json::parse(read_bytes(folder.file("out.json")));
  REQUIRE(seen.size() == records.size());
  for (size_t i = 0; i < records.size(); ++i) {
    CHECK(seen[i]["tokens"] == nlohmann::json(records[i].tokens));
    CHECK(seen[i]["mask"] == nlohmann::json(records[i].mask));
    CHECK(seen[i]["src"] == records[i].src);
    CHECK(seen[i]["dst"] == records[i].dst);
  }
}

TEST_CASE("a packet file whose meta data nests 70,000 levels deep is refused by name") {
  TemporaryFolder folder;
  const std::string path = folder.file("deep.qubgpu");
  write_records(path, random_records(3, 20, 7), CrcVariant::ccitt_false);
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  ContainerHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  const std::string meta = "{\"a\":" + std::string(70000, '[') + std::string(70000, ']') + "}";
  bytes = bytes.substr(0, header.meta_offset) + meta;
  header.meta_bytes = meta.size();
  bytes.replace(0, kHeaderBytes, header_bytes(header));
  write_bytes(path, reseal(bytes));
  CHECK_THROWS_WITH(PacketFile::open(path), path + ": the meta data: nested over 128 levels deep");
}
