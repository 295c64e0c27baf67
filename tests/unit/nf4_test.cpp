// bitsandbytes' NF4 as the tensors that a folder of it shows. (Its own numbers, by transformers' logits:
// tests/lua/nf4_test.lua.)
#include "kernels/math/bf16.h"
#include "tests/catch.h"
#include "tests/unit/packed_folder.h"

using namespace qeng;

namespace {

constexpr int kOut = 4, kIn = 64, kBlocks = 4;
const std::string kState = ".quant_state.bitsandbytes__nf4";

std::string config(const std::string& more = "") {
  return R"({"quantization_config": {"quant_method": "bitsandbytes", "bnb_4bit_quant_type": "nf4", "load_in_4bit": true)" +
         more + "}}";
}

void set_state(packed::Parts& parts, const std::string& text) {
  parts.set("w" + kState, DType::u8, {static_cast<int64_t>(text.size())}, std::vector<char>(text.begin(), text.end()));
}

// w, [4, 64] in blocks of 64: bytes count up, code k stands for k / 8 - 1, block b has scale 1 << b.
packed::Parts matrix(const std::string& dtype = "float32") {
  packed::Parts parts;
  std::vector<uint8_t> codes(kOut * kIn / 2);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(7 * i);
  std::vector<float> map(16);
  for (size_t k = 0; k < map.size(); ++k) map[k] = static_cast<float>(k) / 8 - 1;
  parts.set("w", DType::u8, {kOut * kIn / 2, 1}, codes);
  parts.set("w.quant_map", DType::f32, {16}, map);
  parts.set("w.absmax", DType::f32, {kBlocks}, std::vector<float>{1, 2, 4, 8});
  parts.set("norm.weight", DType::f32, {1}, std::vector<float>{2});
  set_state(parts, R"({"shape": [4, 64], "dtype": ")" + dtype + R"(", "blocksize": 64})");
  return parts;
}

double expected(int i, const double* scales) {
  const int byte = 7 * (i / 2) & 255, code = i % 2 ? byte & 15 : byte >> 4;
  return (code / 8. - 1) * scales[i / kIn];
}

// Scales in codes of 8 bits: block b has nested_map[10 b + 1] nested_absmax[b / 2] + 0.5.
packed::Parts nested() {
  packed::Parts parts = matrix();
  std::vector<float> map(256);
  for (size_t k = 0; k < map.size(); ++k) map[k] = static_cast<float>(k) / 16;
  parts.set("w.absmax", DType::u8, {kBlocks}, std::vector<uint8_t>{1, 11, 21, 31});
  parts.set("w.nested_quant_map", DType::f32, {256}, map);
  parts.set("w.nested_absmax", DType::f32, {2}, std::vector<float>{1, 3});
  set_state(parts, R"({"shape": [4, 64], "dtype": "float32", "blocksize": 64, "nested_blocksize": 2, )"
                   R"("nested_offset": 0.5, "nested_dtype": "float32"})");
  return parts;
}

}  // namespace

TEST_CASE("nf4: each code is a number of the map times its block's scale, in the dtype that the weights had") {
  const packed::Folder folder;
  Device device(make_cpu_backend(1));
  const double scales[] = {1, 2, 4, 8}, in_codes[] = {0.5 + 1 / 16., 0.5 + 11 / 16., 0.5 + 63 / 16., 0.5 + 93 / 16.};
  const auto check = [&](const packed::Parts& parts, DType dtype, const double* of) {
    Weights weights(folder.open(config(), parts));
    CHECK(packed::names_of(weights.file()) == std::vector<std::string>{"norm.weight", "w"});
    CHECK(weights.file().remarks().size() == 1);
    const StoredTensor& stored = weights.file().get("w");
    CHECK(stored.decoder->dtype == dtype);
    CHECK_FALSE(stored.decoder->keep);
    const std::vector<double> values = to_host(*weights.tensor(device, "w", {.shape = Shape{kOut, kIn}}));
    for (int i = 0; i < kOut * kIn; ++i) REQUIRE(values[static_cast<size_t>(i)] == expected(i, of));
    CHECK(to_host(*weights.tensor(device, "w", {.dtype = DType::f32})) == values);
  };
  check(matrix("float32"), DType::f32, scales);
  check(matrix("bfloat16"), DType::bf16, scales);
  check(matrix("float16"), DType::f16, scales);
  check(nested(), DType::f32, in_codes);
}

TEST_CASE("nf4: settings of another packing are refused by name") {
  const packed::Folder folder;
  const auto with = [&](const std::string& settings) {
    return folder.refusal(R"({"quantization_config": {"quant_method": "bitsandbytes")" + settings + "}}", matrix());
  };
  CHECK_THAT(with(""), containing("quantization_config.load_in_4bit is missing; true is supported"));
  CHECK_THAT(with(R"(, "load_in_4bit": false)"), containing("load_in_4bit is false; true is supported"));
  CHECK_THAT(with(R"(, "load_in_4bit": true, "bnb_4bit_quant_type": "fp4")"),
             containing("bnb_4bit_quant_type is fp4; nf4 is supported"));
  CHECK_THAT(folder.refusal(config(R"(, "bnb_4bit_quant_storage": "bfloat16")"), matrix()),
             containing("bnb_4bit_quant_storage is bfloat16; uint8 is supported"));
  CHECK(folder.refusal(config(R"(, "bnb_4bit_quant_storage": null)"), matrix(), "w") == "nothing thrown");
}

TEST_CASE("nf4: parts that do not fit, and states that say nothing, are named") {
  const packed::Folder folder;
  const auto with = [&](const std::function<void(packed::Parts&)>& change) {
    packed::Parts parts = nested();
    change(parts);
    return folder.refusal(config(), parts, "w");
  };
  const auto state = [&](const std::string& text) {
    return with([&](packed::Parts& parts) { set_state(parts, text); });
  };
  const auto drop = [&](const std::string& name) { return with([&](packed::Parts& parts) { parts.all.erase(name); }); };
  CHECK(with([](packed::Parts&) {}) == "nothing thrown");
  CHECK_THAT(drop("w"), containing("format: ") && containing("tensor w is missing, whose quantization state is there"));
  for (const std::string part : {"quant_map", "absmax", "nested_quant_map", "nested_absmax"})
    CHECK_THAT(drop("w." + part), containing("model.safetensors: tensor w: " + part + " is missing"));

  const std::string shape = R"({"shape": [4, 64], "dtype": "float32")";
  CHECK_THAT(state(shape + R"(, "blocksize": 32})"),
             containing("shape: ") && containing("absmax is u8 [4], expected u8 of 8"));
  CHECK_THAT(state(shape + R"(, "nested_blocksize": 1})"),
             containing("nested_absmax is f32 [2], expected f32 of 4 elements"));
  CHECK_THAT(state(R"({"shape": [127, 64], "dtype": "float32"})"),
             containing("the weight is u8 [128, 1], expected u8 of half the elements of [127, 64]"));
  for (const char* dims :
       {"[256]", "[2, 2, 64]", "[4, 64.0]", "[-4, -64]", "[4294967296, 4294967296]", "{}", "[0, 64]"})
    CHECK_THAT(state(R"({"dtype": "float32", "shape": )" + std::string(dims) + "}"),
               containing("shape: ") && containing("tensor w: shape is [") && containing("expected that of a matrix"));
  CHECK_THAT(state(R"({"dtype": "float32"})"), containing("shape is [], expected that of a matrix"));
  CHECK_THAT(state(R"({"shape": [4, 64], "dtype": "int8"})"), containing("dtype is int8, expected bfloat16, float16"));
  CHECK_THAT(state(R"({"shape": [4, 64]})"), containing("dtype is missing, expected bfloat16"));
  for (const char* block : {"0", "-64", "63", "64.0", "\"64\"", "1e9", "4294967296", "[]"})
    CHECK_THAT(state(shape + R"(, "blocksize": )" + block + "}"),
               containing("value: ") && containing("blocksize is ") && containing("expected a multiple of 2 above 0"));
  CHECK_THAT(state(shape + R"(, "nested_blocksize": 0})"), containing("nested_blocksize is 0"));
  CHECK_THAT(state(shape + R"(, "nested_blocksize": 2, "nested_offset": "1"})"),
             containing("nested_offset is no number"));
  for (const std::string text : {"", "[]", "{", "\xff"})
    CHECK_THAT(state(text), containing("quant_state is no JSON object"));
  CHECK_THAT(state(std::string(100'000, '[')), containing("quant_state is u8 [100000], expected u8 of at most 65536"));
  CHECK_THAT(state(std::string(60'000, '[')), containing("nested over 64"));
  CHECK_THAT(with([](packed::Parts& parts) { parts.all["w.quant_map"].shape = {2, 8}; }), containing("nothing thrown"));
  CHECK_THAT(with([](packed::Parts& parts) { parts.all["w.quant_map"].dtype = DType::i32; }),
             containing("quant_map is i32 [16], expected f32 of 16 elements"));

  // A layer of another part of the model, which is not asked for, may be one that cannot be decoded.
  packed::Parts ragged = matrix();
  set_state(ragged, R"({"shape": [8, 32], "dtype": "float32", "blocksize": 64})");
  CHECK(folder.refusal(config(), ragged, "norm.weight") == "nothing thrown");
  CHECK_THAT(folder.refusal(config(), ragged, "w"),
             containing("unsupported: ") && containing("tensor w: rows of 32 inputs are no whole blocks of 64"));
}
