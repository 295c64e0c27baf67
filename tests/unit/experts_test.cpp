// Experts that a checkpoint has as a matrix each, read as one tensor.
#include "tests/catch.h"
#include "tests/unit/packed_folder.h"

using namespace qeng;

namespace {

const std::string kPlain = R"({"model_type": "any"})";

// Expert e of `part` holds 100 e, 100 e + 1, ... as [2, 3].
void set_expert(packed::Parts& parts, int e, const std::string& part, int64_t rows = 2) {
  std::vector<float> values(static_cast<size_t>(3 * rows));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(100 * e) + static_cast<float>(i);
  parts.set("mlp.experts." + std::to_string(e) + "." + part + ".weight", DType::f32, {rows, 3}, values);
}

}  // namespace

TEST_CASE("experts: matrices of one part are one tensor, in the order of their numbers") {
  packed::Parts parts;
  for (int e = 0; e < 12; ++e) set_expert(parts, e, "up_proj"), set_expert(parts, e, "down_proj");
  parts.set("norm.weight", DType::f32, {1}, std::vector<float>{2});
  const packed::Folder folder;
  Device device(make_cpu_backend(1));
  Weights weights(folder.open(kPlain, parts));
  CHECK(packed::names_of(weights.file()) ==
        std::vector<std::string>{"mlp.experts.down_proj.weight", "mlp.experts.up_proj.weight", "norm.weight"});
  const StoredTensor& stored = weights.file().get("mlp.experts.up_proj.weight");
  CHECK(stored.shape == std::vector<int64_t>{12, 2, 3});
  CHECK(stored.bytes == 12 * 6 * sizeof(float));
  const std::vector<double> values = to_host(*weights.tensor(device, stored.name, {.shape = Shape{12, 2, 3}}));
  for (size_t i = 0; i < values.size(); ++i) REQUIRE(values[i] == static_cast<double>(100 * (i / 6) + i % 6));
  const std::vector<double> narrow = to_host(*weights.tensor(device, stored.name, {.dtype = DType::bf16}));
  CHECK(narrow[7] == 101);
}

TEST_CASE("experts: what is missing, or unlike the others, is named") {
  const packed::Folder folder;
  packed::Parts gap;
  for (const int e : {0, 1, 3}) set_expert(gap, e, "w1");
  CHECK(folder.refusal(kPlain, gap).find("of mlp.experts.w1.weight expert 2 is missing") != std::string::npos);

  packed::Parts wide;
  set_expert(wide, 0, "w1"), set_expert(wide, 1, "w1", 4);
  CHECK(folder.refusal(kPlain, wide).find("mlp.experts.1.w1.weight is [4, 3], that of another expert [2, 3]") !=
        std::string::npos);

  packed::Parts mixed;
  set_expert(mixed, 0, "w1");
  mixed.set("mlp.experts.1.w1.weight", DType::u8, {2, 3}, std::vector<uint8_t>(6));
  CHECK(folder.refusal(kPlain, mixed).find("is of type U8, that of another expert F32") != std::string::npos);

  packed::Parts twice;
  set_expert(twice, 0, "w1");
  twice.set("mlp.experts.w1.weight", DType::f32, {1}, std::vector<float>{2});
  CHECK(folder.refusal(kPlain, twice).find("is there as a whole, and for each expert") != std::string::npos);
}

TEST_CASE("experts: tensors beside the matrices stay as they are") {
  const packed::Folder folder;
  packed::Parts parts;
  set_expert(parts, 0, "w1");
  parts.set("mlp.experts.0.w1.bias", DType::f32, {2}, std::vector<float>{1, 2});
  parts.set("mlp.experts.0.weight", DType::f32, {1}, std::vector<float>{1});
  CHECK(packed::names_of(*folder.open(kPlain, parts)) ==
        std::vector<std::string>{"mlp.experts.0.w1.bias", "mlp.experts.w1.weight", "mlp.experts.0.weight"});
}
