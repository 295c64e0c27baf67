#include "kernels/blocks.h"

#include <cmath>
#include <cstring>

#include "engine/formats/safetensors.h"
#include "kernels/cpu/isa/table.h"
#include "kernels/math/blocks/with_block.h"
#include "tests/catch.h"

using namespace qeng;

namespace {

std::vector<DType> block_formats() {
  std::vector<DType> formats;
  for (int i = 0; i < kDTypeCount; ++i)
    if (is_block(static_cast<DType>(i))) formats.push_back(static_cast<DType>(i));
  return formats;
}

// The same bits; one NaN is as good as another.
bool same(float a, float b) { return std::isnan(a) ? std::isnan(b) : std::memcmp(&a, &b, 4) == 0; }

}  // namespace

TEST_CASE("structs of block formats are as large as the table of dtypes says") {
  for (DType dtype : block_formats())
    blocks::with_block(dtype, [&](auto tag) {
      INFO(dtype_name(dtype));
      CHECK(sizeof(tag) == static_cast<size_t>(dtype_info(dtype).bytes));
      CHECK(tag.kElements == dtype_info(dtype).elements);
      CHECK(tag.kElements % tag.kGroup == 0);
    });
}

TEST_CASE("decoded blocks have the bits of the gguf package and of llama.cpp") {
  const auto golden = SafeTensors::open(QENG_SOURCE_DIR "/tests/golden/blocks.safetensors");
  for (DType dtype : block_formats()) {
    const std::string name = dtype_name(dtype);
    INFO(name);
    const StoredTensor &bytes = golden->get(name + ".bytes"), &values = golden->get(name + ".values");
    const int64_t count = values.shape[0] * values.shape[1];
    REQUIRE(bytes.bytes == dtype_bytes(dtype, count));
    std::vector<uint16_t> row(bytes.bytes / 2 + 1);  // aligned, as tensors are
    std::memcpy(row.data(), bytes.data, bytes.bytes);
    std::vector<float> wanted(static_cast<size_t>(count)), got(wanted.size());
    std::memcpy(wanted.data(), values.data, values.bytes);
    decode_row(dtype, row.data(), 0, count, got.data());
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; ++i) wrong += !same(got[static_cast<size_t>(i)], wanted[static_cast<size_t>(i)]);
    CHECK(wrong == 0);
    for (int64_t first : {int64_t{1}, int64_t{17}, int64_t{31}, count / 2 - 3}) {  // a range inside
      const int64_t length = std::min<int64_t>(count - first, 7 + first);
      decode_row(dtype, row.data(), first, length, got.data());
      for (int64_t i = 0; i < length; ++i)
        wrong += !same(got[static_cast<size_t>(i)], wanted[static_cast<size_t>(first + i)]);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("every instruction set decodes any range of a row to the same bits") {
  const auto golden = SafeTensors::open(QENG_SOURCE_DIR "/tests/golden/blocks.safetensors");
  for (const char* isa : {"baseline", "avx2", "avx512"}) {
    const isa::Table* table = isa::find(isa);
    if (!table) {
      std::fprintf(stderr, "SKIPPED %s: this machine does not run it\n", isa);
      continue;
    }
    for (DType dtype : block_formats()) {
      INFO(isa << " " << dtype_name(dtype));
      const StoredTensor& bytes = golden->get(std::string(dtype_name(dtype)) + ".bytes");
      std::vector<uint16_t> row(bytes.bytes / 2 + 1);
      std::memcpy(row.data(), bytes.data, bytes.bytes);
      const int64_t count = bytes.shape[0] * dtype_info(dtype).elements;
      std::vector<float> wanted(static_cast<size_t>(count)), got(wanted.size());
      int64_t wrong = 0;
      for (int64_t first : {int64_t{0}, int64_t{5}, int64_t{32}, int64_t{48}})
        for (int64_t length : {int64_t{1}, int64_t{16}, int64_t{31}, count - first}) {
          decode_row(dtype, row.data(), first, length, wanted.data());
          table->decode(dtype, row.data(), first, length, got.data());
          for (size_t i = 0; i < static_cast<size_t>(length); ++i) wrong += !same(got[i], wanted[i]);
        }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("blocks decode the vectors of the formats' description") {
  float w[256];
  SECTION("2 bits, the first weight lowest: E4 is -1 0 1 2") {
    uint16_t q2_0[9] = {0x3c00, 0x00e4};
    decode_row(DType::q2_0, q2_0, 0, 4, w);
    CHECK((w[0] == -1 && w[1] == 0 && w[2] == 1 && w[3] == 2));
    uint16_t pq2_0[17] = {0x3c00, 0x00e4};
    decode_row(DType::pq2_0, pq2_0, 0, 4, w);
    CHECK((w[0] == -1 && w[1] == 0 && w[2] == 1 && w[3] == 2));
  }
  SECTION("TQ2_0 has them 32 apart") {
    blocks::TQ2_0 b{};
    b.qs[0] = 0xe4, b.d = {0x3c00};
    decode_row(DType::tq2_0, &b, 0, 128, w);
    CHECK((w[0] == -1 && w[32] == 0 && w[64] == 1 && w[96] == 2));
  }
  SECTION("TQ1_0: the digits 2 1 0 2 1 are CF, and 2 0 1 1 are B8 in the last run") {
    blocks::TQ1_0 b{};
    b.qs[0] = 0xcf, b.qh[0] = 0xb8, b.d = {0x3c00};
    decode_row(DType::tq1_0, &b, 0, 256, w);
    CHECK((w[0] == 1 && w[32] == 0 && w[64] == -1 && w[96] == 1 && w[128] == 0));
    CHECK((w[240] == 1 && w[244] == -1 && w[248] == 0 && w[252] == 0));
  }
  SECTION("PTQ1_0 has runs of 16, 8 and 2 bytes") {
    blocks::PTQ1_0 b{};
    b.qs[0] = b.qs[16] = 0xcf, b.qh[1] = 0xb8, b.d = {0x3c00};
    decode_row(DType::ptq1_0, &b, 0, 128, w);
    CHECK((w[0] == 1 && w[16] == 0 && w[32] == -1 && w[48] == 1 && w[64] == 0));
    CHECK((w[80] == 1 && w[88] == 0 && w[96] == -1 && w[104] == 1 && w[112] == 0));
    CHECK((w[121] == 1 && w[123] == -1 && w[125] == 0 && w[127] == 0));
  }
  SECTION("Q1_0: a set bit is +d, the first weight in the lowest bit") {
    blocks::Q1_0 b{};
    b.qs[0] = 5, b.d = {0x4000};
    decode_row(DType::q1_0, &b, 0, 4, w);
    CHECK((w[0] == 2 && w[1] == -2 && w[2] == 2 && w[3] == -2));
  }
}

TEST_CASE("decode_row refuses a dtype without float values") {
  int32_t row[4] = {};
  float out[4];
  CHECK_THROWS_WITH(decode_row(DType::i32, row, 0, 4, out), containing("i32 is no block format"));
}
