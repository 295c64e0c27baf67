#include "engine/quantize/one_bit.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "engine/formats/safetensors.h"
#include "engine/quantize/quantize.h"
#include "kernels/backend.h"
#include "kernels/interleave.h"
#include "kernels/view_text.h"
#include "tests/catch.h"

using namespace qeng;

namespace {

Device& cpu() {
  static Device device(make_cpu_backend(2));
  return device;
}

TensorPtr of_bytes(DType dtype, const Shape& shape, const std::vector<uint8_t>& bytes) {
  TensorPtr x = make_tensor(cpu(), shape, dtype);
  REQUIRE(x->view.bytes() == bytes.size());
  std::memcpy(x->view.data, bytes.data(), bytes.size());
  return x;
}
TensorPtr of_floats(const std::vector<float>& values) {
  TensorPtr x = make_tensor(cpu(), {static_cast<int64_t>(values.size())}, DType::f32);
  std::memcpy(x->view.data, values.data(), 4 * values.size());
  return x;
}
std::vector<uint8_t> bytes_of(const Tensor& x) { return {x.view.as<uint8_t>(), x.view.as<uint8_t>() + x.view.bytes()}; }
std::vector<uint8_t> random_bytes(size_t count) {
  std::mt19937 engine(7);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(engine());
  return bytes;
}

struct File {
  std::string path = (std::filesystem::temp_directory_path() / ("qeng_one_bit_" + std::to_string(::getpid()))).string();
  ~File() { std::filesystem::remove(path); }
};

// A file of one tensor "w" of the given type and shape, and what __metadata__ says of it.
std::string message_of(const std::string& dtype, const std::string& shape, size_t bytes, const std::string& kind) {
  const File file;
  const std::string header = R"({"__metadata__": {"qeng.dtype:w": ")" + kind + R"("}, "w": {"dtype": ")" + dtype +
                             R"(", "shape": )" + shape + R"(, "data_offsets": [0, )" + std::to_string(bytes) + "]}}";
  const uint64_t length = header.size();
  std::string text(reinterpret_cast<const char*>(&length), 8);
  text += header + std::string(bytes, '\0');
  std::ofstream(file.path, std::ios::binary) << text;
  try {
    SafeTensors::open(file.path);
  } catch (const Error& error) {
    return error.code + ": " + error.what();
  }
  return "opened";
}

}  // namespace

TEST_CASE("set and differing bits are counted") {
  const TensorPtr x = of_bytes(DType::one_bit, {2, 32}, {1, 0, 0, 0x80, 0xff, 0, 0, 0});
  const TensorPtr y = of_bytes(DType::one_bit, {2, 32}, {0, 0, 0, 0x80, 0x0f, 0, 0, 1});
  CHECK(count_set_bits(*x) == 10);
  CHECK(count_differing_bits(*x, *y) == 6);
  std::vector<uint8_t> many = random_bytes(3 * 65536 + 20);  // more than a piece of work, and no whole 64-bit words
  const auto columns = static_cast<int64_t>(many.size()) * 8;
  const TensorPtr a = of_bytes(DType::one_bit, {columns}, many);
  int64_t set = 0;
  for (const uint8_t byte : many) set += __builtin_popcount(byte);
  CHECK(count_set_bits(*a) == set);
  many[5] ^= 3, many.back() ^= 0x81;
  CHECK(count_differing_bits(*a, *of_bytes(DType::one_bit, {columns}, many)) == 4);
  CHECK_THROWS_WITH(count_differing_bits(*x, *a), containing("differ in shape"));
  CHECK_THROWS_WITH(count_set_bits(*of_bytes(DType::u8, {3}, {1, 2, 3})), containing("expected a one_bit tensor"));
}

TEST_CASE("one_bit and ternary tensors come back from a safetensors file as they were") {
  const TensorPtr bits = of_bytes(DType::one_bit, {2, 3, 64}, random_bytes(48));
  const TensorPtr pairs = of_bytes(DType::ternary, {3, 64}, random_bytes(48));
  const File file;
  save_safetensors(file.path, {{"bits", bits->view}, {"pairs", pairs->view}, {"scale", of_floats({1, 2, 3})->view}},
                   {{"qeng.dtype:scale", "one_bit"}, {"by", "test"}});
  const auto read = SafeTensors::open(file.path);
  CHECK(shape_text(read->view("bits")) == "one_bit [2, 3, 64]");
  CHECK(shape_text(read->view("pairs")) == "ternary [3, 64]");
  CHECK(shape_text(read->view("scale")) == "f32 [3]");
  CHECK(read->get("bits").type_name == "U32");
  CHECK(read->metadata().at("by") == "test");
  CHECK(std::memcmp(read->view("bits").data, bits->view.data, 48) == 0);
  CHECK(std::memcmp(read->view("pairs").data, pairs->view.data, 48) == 0);
  CHECK(reinterpret_cast<uintptr_t>(read->view("pairs").data) % 4 == 0);
}

TEST_CASE("a safetensors file that calls other things one_bit or ternary is refused") {
  CHECK(message_of("U32", "[2, 4]", 32, "one_bit") == "opened");
  CHECK(message_of("U32", "[2, 4]", 32, "ternary") == "opened");
  CHECK_THAT(message_of("U32", "[2, 4]", 32, "q4_0"), containing("is q4_0, expected one_bit or ternary"));
  CHECK_THAT(message_of("F32", "[2, 4]", 32, "one_bit"), containing("not rows of U32 words"));
  CHECK_THAT(message_of("U32", "[2, 3]", 24, "ternary"), containing("not pairs of U32 words"));
  CHECK_THAT(message_of("U32", "[]", 4, "one_bit"), containing("not rows of U32 words"));
  CHECK_THAT(message_of("U32", "[0, 9223372036854775807]", 0, "one_bit"), containing("not rows of U32 words"));
  CHECK_THROWS_WITH((TensorSpec{"w", DType::q4_0, {32}}.bytes()), containing("safetensors files lack"));
  CHECK_THROWS_WITH((TensorSpec{"w", DType::one_bit, {33}}.bytes()), containing("whole blocks of 32"));
}

TEST_CASE("one_bit rows and their scales are q1_0 blocks of the same bits, and come back") {
  const std::vector<uint8_t> bits = random_bytes(64);  // two rows of two blocks
  const TensorPtr w = of_bytes(DType::one_bit, {2, 256}, bits), scale = of_floats({0.5f, -3});
  const TensorPtr packed = join_row_scale(w, scale, DType::q1_0);
  std::vector<uint8_t> expected;
  for (int block = 0; block < 4; ++block) {
    const uint16_t d = block < 2 ? 0x3800 : 0xc200;  // halves 0.5 and -3
    expected.push_back(static_cast<uint8_t>(d & 255)), expected.push_back(static_cast<uint8_t>(d >> 8));
    expected.insert(expected.end(), bits.begin() + 16 * block, bits.begin() + 16 * block + 16);
  }
  CHECK(bytes_of(*packed) == expected);
  const RowScaled parts = split_row_scale(packed);
  CHECK(bytes_of(*parts.w) == bits);
  CHECK(to_host_f32(*parts.scale) == std::vector<float>{0.5f, -3});
  CHECK(to_host_f32(*join_row_scale(w, scale, DType::f32)) == to_host_f32(*packed));
  CHECK(to_host_f32(*join_row_scale(w, scale, DType::bf16)) == to_host_f32(*packed));
}

TEST_CASE("ternary rows and their scales are tq2_0 blocks of the same values, and come back") {
  std::vector<float> values(3 * 512);
  std::mt19937 engine(3);
  for (float& value : values) value = static_cast<float>(static_cast<int>(engine() % 3) - 1);
  std::fill(values.begin() + 512, values.begin() + 768, 0.0f);  // a block of zeros, whose scale does not matter
  const TensorPtr plain = reshape_view(of_floats(values), {3, 512}), w = quantize(plain, DType::ternary);
  const TensorPtr scale = of_floats({0.25f, 2, 0.125f}), packed = join_row_scale(w, scale, DType::tq2_0);
  const std::vector<float> factors{0.25f, 2, 0.125f}, decoded = to_host_f32(*packed);
  for (size_t i = 0; i < values.size(); ++i) CHECK(decoded[i] == values[i] * factors[i / 512]);
  packed->view.as<uint16_t>()[2 * 33 + 32] = 0;  // the scale of that block, as llama.cpp would write it
  const RowScaled parts = split_row_scale(packed);
  CHECK(bytes_of(*parts.w) == bytes_of(*w));
  CHECK(to_host_f32(*parts.scale) == factors);
}

TEST_CASE("interleaved rows have the codes and scales of rows in order") {
  std::vector<float> values(32 * 256), factors(32);
  std::mt19937 engine(4);
  for (float& value : values) value = static_cast<float>(static_cast<int>(engine() % 3) - 1);
  for (size_t r = 0; r < factors.size(); ++r) factors[r] = static_cast<float>(r + 1) / 8;
  const TensorPtr w = quantize(reshape_view(of_floats(values), {32, 256}), DType::ternary);
  const TensorPtr packed = join_row_scale(w, of_floats(factors), DType::tq2_0);
  packed->view = interleave(packed->view, 1);
  const RowScaled parts = split_row_scale(packed);
  CHECK(bytes_of(*parts.w) == bytes_of(*w));
  CHECK(to_host_f32(*parts.scale) == factors);
}

TEST_CASE("weights that have no scale a row are refused by name") {
  const TensorPtr w = of_bytes(DType::one_bit, {2, 256}, random_bytes(64)), scale = of_floats({1, 2});
  const TensorPtr packed = join_row_scale(w, scale, DType::q1_0);
  packed->label = "blk.0.ffn_up.weight";
  packed->view.as<uint16_t>()[9] = 0x3c01;
  CHECK_THROWS_WITH(split_row_scale(packed),
                    containing("row 0 of blk.0.ffn_up.weight has blocks of scale 1 and 1.00098"));
  CHECK_THROWS_WITH(split_row_scale(w), containing("expected q1_0 or tq2_0"));
  CHECK_THROWS_WITH(join_row_scale(w, scale, DType::tq2_0),
                    containing("one_bit weights become q1_0, f32, bf16 or f16"));
  CHECK_THROWS_WITH(join_row_scale(w, of_floats({1}), DType::q1_0), containing("expected f32 [2]"));
  CHECK_THROWS_WITH(join_row_scale(w, of_floats({1, 7e4f}), DType::q1_0), containing("row 1 is 70000"));
  const TensorPtr narrow = of_bytes(DType::one_bit, {1, 96}, random_bytes(12));
  CHECK_THROWS_WITH(join_row_scale(narrow, of_floats({1}), DType::q1_0), containing("fit f16, bf16 and f32"));
  TensorPtr threes = of_bytes(DType::tq2_0, {1, 256}, std::vector<uint8_t>(66, 0xff));
  CHECK_THROWS_WITH(split_row_scale(threes), containing("twice its scale"));
}
