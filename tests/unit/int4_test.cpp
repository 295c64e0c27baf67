// AWQ's and GPTQ's packed layers as the tensors that a folder of them shows.
#include <algorithm>

#include "kernels/math/bf16.h"
#include "tests/catch.h"
#include "tests/unit/packed_folder.h"

using namespace qeng;

namespace {

const std::string kGolden = QENG_SOURCE_DIR "/tests/golden/int4/";
constexpr int kIn = 64, kOut = 8, kGroups = 2;
const std::string kAwq = R"({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32}})";
const std::string kGptq = R"({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}})";

// Layer x of 64 inputs in 2 groups and 8 outputs, all of whose codes are 5 and zero points 3 (4 in GPTQ's), and scales
// 0.5; and a norm.
packed::Parts layer(bool awq) {
  packed::Parts parts;
  const std::vector<int32_t> codes(kIn * kOut / 8, 0x55555555), zeros(kGroups, 0x33333333);
  parts.set("x.qweight", DType::i32, awq ? std::vector<int64_t>{kIn, 1} : std::vector<int64_t>{kIn / 8, kOut}, codes);
  parts.set("x.qzeros", DType::i32, {kGroups, 1}, zeros);
  parts.set("x.scales", DType::f16, {kGroups, kOut}, std::vector<f16>(kGroups * kOut, to_f16(0.5f)));
  parts.set("norm.weight", DType::f32, {1}, std::vector<float>{2});
  return parts;
}

std::vector<int32_t> groups_of(int (*of)(int)) {
  std::vector<int32_t> groups(kIn);
  for (int i = 0; i < kIn; ++i) groups[static_cast<size_t>(i)] = of(i);
  return groups;
}

}  // namespace

TEST_CASE("int4: a folder of AWQ or GPTQ shows layers of the values they stand for, and no parts") {
  Device device(make_cpu_backend(1));
  const auto values = SafeTensors::open(kGolden + "values.safetensors");
  for (const std::string method : {"awq", "gptq", "act_order"}) {
    Weights weights(open_weights(kGolden + method));
    int shown = 0;
    for (const StoredTensor& tensor : weights.file().tensors()) {
      for (const char* part : {".qweight", ".qzeros", ".scales", ".g_idx"}) CHECK_FALSE(tensor.name.ends_with(part));
      if (!values->find(method + "." + tensor.name.substr(0, tensor.name.rfind('.')))) continue;
      if (!tensor.name.ends_with(".weight")) continue;
      ++shown;
      const View expected = values->view(method + "." + tensor.name.substr(0, tensor.name.rfind('.')));
      const TensorPtr weight = weights.tensor(device, tensor.name);
      CHECK(weight->view.dtype == (method == "act_order" ? DType::f16 : DType::int4));
      CHECK(tensor.decoder->keep);
      CHECK(tensor.shape == std::vector<int64_t>{expected.shape[0], expected.shape[1]});
      const std::vector<double> got = to_host(*weight);
      CHECK(std::equal(got.begin(), got.end(), expected.as<float>()));
    }
    CHECK(shown == 2);
    CHECK(weights.file().remarks().size() == (method == "act_order" ? 1 : 0));
  }
}

TEST_CASE("int4: parts need not be halves or in order where the values are the same") {
  const packed::Folder folder;
  Device device(make_cpu_backend(1));
  const auto all_of = [&](const std::string& config, const packed::Parts& parts, DType dtype) {
    Weights weights(folder.open(config, parts));
    const TensorPtr weight = weights.tensor(device, "x.weight", {.shape = Shape{kOut, kIn}});
    return weight->view.dtype == dtype && to_host(*weight) == std::vector<double>(kIn * kOut, dtype == DType::int4);
  };
  CHECK(packed::names_of(*folder.open(kAwq, layer(true))) == std::vector<std::string>{"norm.weight", "x.weight"});
  packed::Parts parts = layer(true);
  CHECK(all_of(kAwq, parts, DType::int4));
  parts.set("x.scales", DType::bf16, {kGroups, kOut}, std::vector<bf16>(kGroups * kOut, to_bf16(0.5f)));
  CHECK(all_of(kAwq, parts, DType::int4));
  parts = layer(false);
  parts.set("x.scales", DType::f32, {kGroups, kOut}, std::vector<float>(kGroups * kOut, 0.5f));
  const std::vector<double> half(kIn * kOut, 0.5);
  for (const bool ordered : {true, false}) {
    parts.set("x.g_idx", DType::i32, {kIn},
              groups_of(ordered ? [](int i) { return i / 32; } : [](int i) { return i % 2; }));
    Weights weights(folder.open(kGptq, parts));
    CHECK(to_host(*weights.tensor(device, "x.weight")) == half);
    CHECK(weights.file().view("x.weight").dtype == (ordered ? DType::int4 : DType::f16));
    CHECK(weights.file().get("x.weight").bytes == 256 + 8 + 64 + 256);
  }
}

TEST_CASE("int4: settings of another packing are refused by name") {
  const packed::Folder folder;
  const auto with = [&](const std::string& settings) {
    return folder.refusal(R"({"quantization_config": {)" + settings + "}}", layer(true));
  };
  CHECK_THAT(with(R"("quant_method": "hqq")"),
             containing("unsupported: ") &&
                 containing("config.json: quantization_config.quant_method is hqq; awq, bitsandbytes, gptq or mxfp4 is "
                            "supported: convert the unquantized model instead"));
  CHECK_THAT(with(""), containing("quant_method is missing; awq"));
  CHECK_THAT(with(R"("quant_method": ["awq"])"), containing("quant_method is a list; awq"));
  CHECK_THAT(with(R"("quant_method": "gptq", "bits": 8)"), containing("bits is 8; 4 is supported"));
  CHECK_THAT(with(R"("quant_method": "awq", "w_bit": 3)"), containing("w_bit is 3; 4 is supported"));
  CHECK_THAT(with(R"("quant_method": "awq", "version": "GEMV")"), containing("version is GEMV; gemm is supported"));
  CHECK_THAT(with(R"("quant_method": "awq", "zero_point": false)"), containing("zero_point is false; true is"));
  CHECK_THAT(with(R"("quant_method": "gptq", "checkpoint_format": "gptq_v2")"), containing("gptq_v2; gptq is"));
  for (const char* size : {"48", "0", "-2", "\"32\"", "32.5", "1e30"})
    CHECK_THAT(with(R"("quant_method": "awq", "group_size": )" + std::string(size)),
               containing("group_size is ") && containing("; a multiple of 32, or -1 is supported"));
  CHECK(with(R"("quant_method": "awq", "version": "GEMM", "bits": null, "group_size": null, "q_group_size": 32)") ==
        "nothing thrown");
  CHECK_THAT(with(R"("quant_method": "awq", "group_size": 64)"),
             containing("layer x has groups of 32 inputs, quantization_config says 64"));

  const auto text = [&](const std::string& config) { return folder.refusal(config, layer(true)); };
  CHECK(text(R"({"a": -Infinity, "b\"NaN": NaN, "quantization_config": null})") == "nothing thrown");
  CHECK_THAT(text(R"({"a": "Infinity", "b": -Infinity, "quantization_config": {}})"), containing("is missing"));
  CHECK_THAT(text(R"({"text_config": {"quantization_config": {"quant_method": "eetq"}}, "quantization_config": {}})"),
             containing("quant_method is eetq"));
  for (const char* config : {"", "[]", "{", "\"NaN"})
    CHECK_THAT(text(config), containing("format: ") && containing("config.json: not a JSON object"));
  CHECK_THAT(text(std::string(100'000, '[')), containing("nested over 128"));
}

TEST_CASE("int4: parts that do not fit, and groups that there are not, are named") {
  const packed::Folder folder;
  const auto with = [&](bool awq, const std::function<void(packed::Parts&)>& change) {
    packed::Parts parts = layer(awq);
    change(parts);
    return folder.refusal(awq ? kAwq : kGptq, parts, "x.weight");
  };
  const auto drop = [&](const char* name) { return with(true, [=](packed::Parts& parts) { parts.all.erase(name); }); };
  CHECK_THAT(drop("x.qzeros"), containing("format: ") && containing("x.qzeros is missing beside x.qweight"));
  CHECK_THAT(drop("x.scales"), containing("x.scales is missing beside x.qweight"));
  CHECK_THAT(
      with(false,
           [](auto& p) {
             p.all["x.qzeros"] = {DType::i32, {1, 1}, std::vector<std::byte>(4)};
           }),
      containing("shape: ") && containing("model.safetensors: layer x: qzeros is i32 [1, 1], expected i32 [2, 1]"));
  CHECK_THAT(with(true,
                  [](auto& p) {
                    p.all["x.qweight"].shape = {kIn / 2, 2};
                  }),
             containing("layer x: 32 inputs in 2 groups and 8 outputs"));
  CHECK_THAT(with(false,
                  [](auto& p) {
                    p.all["x.scales"].shape = {1, 16};
                  }),
             containing("qweight is i32 [8, 8], expected i32 [8, 16]"));
  CHECK_THAT(with(true, [](auto& p) { p.all["x.qweight"].dtype = DType::f32; }),
             containing("qweight is f32 [64, 1], scales f16 [2, 8]; expected matrices"));
  CHECK_THAT(with(true, [](auto& p) { p.all["x.scales"].shape = {16}; }), containing("scales f16 [16]; expected"));
  CHECK_THAT(with(true,
                  [](auto& p) {
                    p.all["x.scales"].shape = {4, 4};
                  }),
             containing("64 inputs in 4 groups and 4 outputs; expected groups of a multiple of 32 inputs"));
  CHECK_THAT(with(false,
                  [](auto& p) {
                    p.all["x.qweight"] = {DType::i32, {int64_t{1} << 58, 0}, {}};
                  }),
             containing("qweight is i32 [288230376151711744, 0]"));
  CHECK_THAT(with(true, [](auto& p) { p.set("x.weight", DType::f32, {1}, std::vector<float>{1}); }),
             containing("tensor x.weight is there packed, and as it is"));
  CHECK_THAT(with(false, [](auto& p) { p.set("x.g_idx", DType::i32, {1}, std::vector<int32_t>{0}); }),
             containing("g_idx is i32 [1], expected i32 [64]"));
  CHECK_THAT(
      with(false, [](auto& p) { p.set("x.g_idx", DType::i32, {kIn}, groups_of([](int i) { return (i + 1) % 3; })); }),
      containing("value: ") && containing("layer x: g_idx puts input 1 into group 2, there are 2"));
  CHECK_THAT(with(false, [](auto& p) { p.set("x.g_idx", DType::i32, {kIn}, groups_of([](int i) { return -i; })); }),
             containing("g_idx puts input 1 into group -1"));
  CHECK_THAT(with(true,
                  [](auto& p) {
                    p.set("x.scales", DType::f32, {kGroups, kOut}, std::vector<float>(16, 0.1f));
                  }),
             containing("value: ") && containing("layer x: the scale 0.1 is not a half-precision number"));
}
