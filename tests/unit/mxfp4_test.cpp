// Experts in MXFP4 as the tensors that a folder of them shows.
#include <algorithm>
#include <cmath>

#include "tests/catch.h"
#include "tests/unit/packed_folder.h"

using namespace qeng;

namespace {

constexpr int kExperts = 2, kRows = 4, kBlocks = 3;  // rows of 96 weights
const std::string kConfig = R"({"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["x"]}})";
const float kFp4[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

// Weight k of row r has code (r + k) % 16, and block b the exponent 120 + r + b.
int code(int row, int k) { return (row + k) % 16; }
double value(int row, int k) {
  const int c = code(row, k);
  return std::ldexp((c < 8 ? 1 : -1) * kFp4[c % 8], 120 + row + k / 32 - 127);
}

packed::Parts experts(const std::string& name) {
  std::vector<uint8_t> codes, scales;
  for (int row = 0; row < kExperts * kRows; ++row)
    for (int b = 0; b < kBlocks; ++b) {
      scales.push_back(static_cast<uint8_t>(120 + row + b));
      for (int k = 32 * b; k < 32 * (b + 1); k += 2)
        codes.push_back(static_cast<uint8_t>(code(row, k) | code(row, k + 1) << 4));
    }
  packed::Parts parts;
  parts.set(name + "_blocks", DType::u8, {kExperts, kRows, kBlocks, 16}, codes);
  parts.set(name + "_scales", DType::u8, {kExperts, kRows, kBlocks}, scales);
  parts.set("norm.weight", DType::f32, {1}, std::vector<float>{2});
  return parts;
}

std::vector<double> rows(int first, int step) {
  std::vector<double> values;
  for (int row = first; row < kExperts * kRows; row += step)
    for (int k = 0; k < 32 * kBlocks; ++k) values.push_back(value(row, k));
  return values;
}

}  // namespace

TEST_CASE("mxfp4: experts show the weights that blocks and scales stand for, gate and up apart") {
  const packed::Folder folder;
  Device device(make_cpu_backend(1));
  Weights down(folder.open(kConfig, experts("down_proj")));
  CHECK(packed::names_of(down.file()) == std::vector<std::string>{"norm.weight", "down_proj"});
  const TensorPtr whole = down.tensor(device, "down_proj", {.shape = Shape{kExperts, kRows, 32 * kBlocks}});
  CHECK(whole->view.dtype == DType::mxfp4);
  CHECK(to_host(*whole) == rows(0, 1));

  Weights both(folder.open(kConfig, experts("x.gate_up_proj")));
  CHECK(packed::names_of(both.file()) == std::vector<std::string>{"norm.weight", "x.gate_proj", "x.up_proj"});
  const Shape half{kExperts, kRows / 2, 32 * kBlocks};
  CHECK(to_host(*both.tensor(device, "x.gate_proj", {.shape = half})) == rows(0, 2));
  CHECK(to_host(*both.tensor(device, "x.up_proj", {.shape = half})) == rows(1, 2));
  CHECK(both.file().get("x.up_proj").bytes * 2 == kExperts * kRows * kBlocks * 17);
}

TEST_CASE("mxfp4: parts that do not fit each other are refused") {
  const packed::Folder folder;
  packed::Parts parts = experts("down_proj");
  parts.all.erase("down_proj_scales");
  CHECK(folder.refusal(kConfig, parts).find("tensor down_proj_scales is missing beside down_proj_blocks") !=
        std::string::npos);
  parts = experts("down_proj");
  parts.set("down_proj_scales", DType::u8, {kExperts, kRows, 1}, std::vector<uint8_t>(kExperts * kRows));
  CHECK(folder.refusal(kConfig, parts).find("scales is u8 [2, 4, 1], expected u8 [2, 4, 3]") != std::string::npos);
  parts = experts("down_proj");
  parts.set("down_proj_blocks", DType::u8, {kExperts, kRows, kBlocks * 16},
            std::vector<uint8_t>(kExperts * kRows * kBlocks * 16));
  CHECK(folder.refusal(kConfig, parts).find("expected u8 [experts, rows, blocks, 16]") != std::string::npos);
  parts = experts("gate_up_proj");
  parts.set("gate_up_proj_blocks", DType::u8, {8, 1, kBlocks, 16}, std::vector<uint8_t>(8 * kBlocks * 16));
  CHECK(folder.refusal(kConfig, parts).find("an even number of rows") != std::string::npos);
}
