#include "engine/packets/payload.h"

#include <cmath>
#include <limits>

#include "engine/packets/packet_file.h"
#include "kernels/error.h"
#include "tests/catch.h"
#include "tests/unit/packets_fixture.h"

using namespace qeng;
using Bytes = std::vector<uint8_t>;
using Values = std::vector<double>;

TEST_CASE("payloads are laid out byte for byte as the protocol says") {
  CHECK(pack_values(FrameType::float32, Values{1, -2.5}) == Bytes{0x3F, 0x80, 0, 0, 0xC0, 0x20, 0, 0});
  CHECK(pack_values(FrameType::float16, Values{1, -2}) == Bytes{0x3C, 0, 0xC0, 0});
  CHECK(pack_values(FrameType::bfloat16, Values{1, -2.5}) == Bytes{0x3F, 0x80, 0xC0, 0x20});
  CHECK(pack_values(FrameType::int8, Values{-1, 127, -128}) == Bytes{0xFF, 0x7F, 0x80});
  CHECK(pack_values(FrameType::ternary, Values{1, 0, -1, 1}) == Bytes{0b01100001});
  CHECK(pack_values(FrameType::one_bit, Values{1, -1, -1, 1, -1, -1, -1, 1}) == Bytes{0b10001001});
}

TEST_CASE("numbers come back from every numeric payload") {
  const auto back = [](FrameType type, const Values& values) { return unpack_values(type, pack_values(type, values)); };
  const double infinity = std::numeric_limits<double>::infinity();
  for (FrameType type : {FrameType::float32, FrameType::float16, FrameType::bfloat16}) {
    const Values values = {0, 1, -1, 0.5, 65280, infinity, -infinity};
    CHECK(back(type, values) == values);
    CHECK(std::isnan(back(type, {std::nan("")})[0]));
  }
  Values all;
  for (int i = -128; i < 128; ++i) all.push_back(i);
  CHECK(back(FrameType::int8, all) == all);
  Values ternary, bits;
  for (int i = 0; i < 81 * 4; ++i) ternary.push_back(i / (i % 3 + 1) % 3 - 1), bits.push_back(i % 5 % 2 * 2 - 1);
  bits.resize(320);
  CHECK(back(FrameType::ternary, ternary) == ternary);
  CHECK(back(FrameType::one_bit, bits) == bits);
}

TEST_CASE("what a payload cannot hold is refused") {
  const auto refused = [](FrameType type, const Values& values, const char* why) {
    CHECK(error_of([&] { pack_values(type, values); }).find(why) != std::string::npos);
  };
  refused(FrameType::int8, {1, 128}, "value 2 of the int8 payload is 128");
  refused(FrameType::int8, {0.5}, "whole number");
  refused(FrameType::ternary, {1, 0, 2, 0}, "-1, 0 or 1");
  refused(FrameType::ternary, {1}, "a multiple of 4");
  refused(FrameType::one_bit, {1, -1, 0, 1, 1, 1, 1, 1}, "-1 or 1");
  refused(FrameType::float16, {1e6}, "a number of its range");
  refused(FrameType::float32, {1e300}, "a number of its range");
  refused(FrameType::utf8, {1}, "no numbers");
  const auto problem = [](FrameType type, const std::string& bytes) {
    return payload_problem(type, Bytes(bytes.begin(), bytes.end()));
  };
  CHECK(problem(FrameType::utf8, "\xC3\xA9\xF0\x9F\x99\x82") == "");
  CHECK(problem(FrameType::utf8, "a\xFF") == "byte 1 begins no UTF-8 character");
  CHECK(problem(FrameType::meta, "{\"a\": 1}") == "");
  CHECK(problem(FrameType::meta, "{") != "");
  CHECK(problem(FrameType::ternary, "\x0C") == "byte 0 holds the ternary code 11");
  CHECK(problem(FrameType::ternary, "\x64") == "");
  CHECK(problem(FrameType::float32, "12345") != "");
  CHECK(problem(FrameType::token_ids, "1234") != "");
}

TEST_CASE("payloads of every awkward length come back from files and bare frames, between documents") {
  TemporaryFolder folder;
  std::vector<Record> records = random_records(20, 50, 3);
  std::mt19937 random(4);
  for (FrameType type : {FrameType::float32, FrameType::float16, FrameType::bfloat16, FrameType::int8,
                         FrameType::ternary, FrameType::one_bit, FrameType::utf8}) {
    const size_t full = full_payload(type), unit = payload_unit(type);
    for (size_t bytes : {size_t{0}, unit, full - unit, full, full + unit, 2 * full, 2 * full + 100 * unit}) {
      Record r;
      r.type = type, r.src = 7, r.dst = static_cast<uint8_t>(random() % 6);
      for (size_t i = 0; i < bytes; ++i) r.payload.push_back(static_cast<uint8_t>(random() % 128 & 0x55));
      records.push_back(r);
      records.push_back(random_records(1, 60, random())[0]);
    }
  }
  for (CrcVariant variant : {CrcVariant::ccitt_false, CrcVariant::xmodem}) {
    Bytes frames;
    {
      PacketWriter writer(folder.file("a.qubgpu"), nlohmann::json::object(), variant);
      for (const Record& r : records) {
        if (r.type == FrameType::token_ids) {
          writer.add(r.tokens, r.mask, r.src, r.dst), append_record(frames, r.tokens, r.mask, r.src, r.dst, variant);
        } else {
          writer.payload(r.type, r.payload, r.src, r.dst),
              append_payload(frames, r.type, r.payload, r.src, r.dst, variant);
        }
      }
      writer.finish();
    }
    const auto file = PacketFile::open(folder.file("a.qubgpu"));
    CHECK(file->verify().ok());
    CHECK(file->payloads() == 49);
    RecordScanner scanner(frames, variant);
    Record seen;
    for (size_t i = 0; i < records.size(); ++i) {
      REQUIRE(scanner.next(seen));
      REQUIRE(seen.type == records[i].type);
      CHECK(seen.tokens == records[i].tokens);
      CHECK(seen.payload == records[i].payload);
      CHECK(seen.src == records[i].src);
      if (seen.type == FrameType::token_ids) continue;
      FrameType type;
      Bytes bytes;
      REQUIRE(file->read_payload(i, type, bytes));
      CHECK(type == seen.type);
      CHECK(file->type(i) == type);
      CHECK(bytes == seen.payload);
      CHECK(file->info(i).tokens == 0);
    }
    CHECK_FALSE(scanner.next(seen));
    // Copied as stored, and into the other variant.
    for (CrcVariant other : {CrcVariant::ccitt_false, CrcVariant::xmodem}) {
      PacketWriter writer(folder.file("b.qubgpu"), nlohmann::json::object(), other);
      for (uint64_t i = 0; i < file->records(); ++i) CHECK(writer.copy(*file, i));
      writer.finish();
      const auto copied = PacketFile::open(folder.file("b.qubgpu"));
      CHECK(copied->verify().ok());
      CHECK(copied->tokens() == file->tokens());
      CHECK(copied->variant() == other);
      CHECK((read_bytes(folder.file("b.qubgpu")) == read_bytes(folder.file("a.qubgpu"))) == (other == variant));
    }
  }
  const auto file = PacketFile::open(folder.file("a.qubgpu"));
  Bytes bytes;
  FrameType type;
  std::vector<int32_t> tokens;
  CHECK(error_of([&] { file->read(20, tokens, bytes); }).find("is a payload") != std::string::npos);
  CHECK(error_of([&] { file->read_payload(0, type, bytes); }).find("no payload") != std::string::npos);
}
