#include "engine/quantize/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "engine/formats/safetensors.h"
#include "engine/quantize/measure.h"
#include "kernels/blocks.h"
#include "kernels/cpu/isa/table.h"
#include "kernels/interleave.h"
#include "kernels/view_text.h"
#include "tests/catch.h"

using namespace qeng;

namespace {

std::vector<float> floats(const StoredTensor& stored) {
  std::vector<float> values(stored.bytes / 4);
  std::memcpy(values.data(), stored.data, stored.bytes);
  return values;
}

std::vector<uint16_t> encoded(DType dtype, const std::vector<float>& x, const float* importance, int64_t columns) {
  const size_t row = dtype_bytes(dtype, columns), rows = x.size() / static_cast<size_t>(columns);
  std::vector<uint16_t> bytes((rows * row + 1) / 2);
  for (size_t r = 0; r < rows; ++r)
    encode_row(dtype, x.data() + r * static_cast<size_t>(columns), importance, columns,
               reinterpret_cast<char*>(bytes.data()) + r * row);
  return bytes;
}

std::vector<float> decoded(DType dtype, const std::vector<uint16_t>& bytes, size_t count) {
  std::vector<float> values(count);
  decode_row(dtype, bytes.data(), 0, static_cast<int64_t>(count), values.data());
  return values;
}

double weighted_rmse(const std::vector<float>& x, const std::vector<float>& y, const float* weights, size_t columns) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i)
    sum += (weights ? weights[i % columns] : 1.0) * std::pow(double{x[i]} - y[i], 2);
  return std::sqrt(sum / static_cast<double>(x.size()));
}

constexpr DType kTernary[] = {DType::tq1_0, DType::tq2_0, DType::q2_0, DType::pq2_0, DType::ptq1_0};

}  // namespace

TEST_CASE("encoders err no more than llama.cpp's, with and without importance") {
  const auto golden = SafeTensors::open(QENG_SOURCE_DIR "/tests/golden/quantize.safetensors");
  const std::vector<float> x = floats(golden->get("x")), importance = floats(golden->get("importance"));
  for (const StoredTensor& each : golden->tensors()) {
    if (each.name.size() < 5 || each.name.substr(each.name.size() - 5) != ".rmse") continue;
    const DType dtype = dtype_from_name(each.name.substr(0, each.name.size() - 5));
    const std::vector<float> limits = floats(each);
    for (size_t weighted : {0, 1}) {
      const float* weights = weighted ? importance.data() : nullptr;
      const std::vector<float> y = decoded(dtype, encoded(dtype, x, weights, 1024), x.size());
      INFO(each.name << (weighted ? " with importance" : ""));
      CHECK(weighted_rmse(x, y, weights, 1024) <= 1.01 * limits[weighted]);
    }
  }
}

TEST_CASE("every instruction set writes the same blocks") {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> x(4096), importance(x.size());
  for (float& value : x) value = normal(random);
  for (float& value : importance) value = std::fabs(normal(random));
  std::fill(x.begin() + 256, x.begin() + 512, 0.0f);
  for (size_t i = 512; i < 1024; i += 37) x[i] = i % 2 ? 65504.0f : -1e-30f;
  std::fill(importance.begin() + 1024, importance.begin() + 1300, 0.0f);
  for (int type = 0; type < kDTypeCount; ++type) {
    const DType dtype = static_cast<DType>(type);
    if (!is_block(dtype) || is_read_only(dtype)) continue;
    for (const float* weights : {static_cast<const float*>(nullptr), static_cast<const float*>(importance.data())}) {
      const std::vector<uint16_t> best = encoded(dtype, x, weights, 4096);
      for (const char* name : isa::kNames) {
        const isa::Table* table = isa::find(name);
        if (!table) continue;
        INFO(dtype_name(dtype) << ", " << name << (weights ? ", with importance" : ""));
        std::vector<uint16_t> out(best.size());
        table->encode(dtype, x.data(), weights, 4096, out.data());
        CHECK(out == best);
      }
    }
  }
}

TEST_CASE("simple encoders write llama.cpp's bytes") {
  const auto golden = SafeTensors::open(QENG_SOURCE_DIR "/tests/golden/quantize.safetensors");
  const std::vector<float> x = floats(golden->get("x"));
  for (const char* name : {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq1_0", "tq2_0", "q1_0", "q2_0"}) {
    INFO(name);
    const StoredTensor& bytes = golden->get(std::string(name) + ".bytes");
    CHECK(std::memcmp(encoded(dtype_from_name(name), x, nullptr, 1024).data(), bytes.data, bytes.bytes) == 0);
  }
}

TEST_CASE("int4 errs as little as its steps allow") {
  const auto golden = SafeTensors::open(QENG_SOURCE_DIR "/tests/golden/quantize.safetensors");
  const std::vector<float> x = floats(golden->get("x"));
  const std::vector<float> y = decoded(DType::int4, encoded(DType::int4, x, nullptr, 1024), x.size());
  CHECK(weighted_rmse(x, y, nullptr, 1024) <= 1.01 * floats(golden->get("q4_1.rmse"))[0]);  // the same number of steps
}

TEST_CASE("ternary weights come back exactly from ternary formats, signs from q1_0") {
  std::mt19937 random(3);
  for (DType dtype : kTernary) {
    INFO(dtype_name(dtype));
    std::vector<float> x(2048);
    const size_t group = static_cast<size_t>(dtype_info(dtype).elements);
    for (size_t i = 0; i < x.size(); ++i) {
      const float d = static_cast<float>(1 + i / group) * 0.03125f;
      x[i] = d * static_cast<float>(static_cast<int>(random() % 3) - 1);
    }
    CHECK(decoded(dtype, encoded(dtype, x, nullptr, 2048), x.size()) == x);
  }
  std::vector<float> signs(1024);
  for (float& w : signs) w = random() % 2 ? 0.0625f : -0.0625f;
  CHECK(decoded(DType::q1_0, encoded(DType::q1_0, signs, nullptr, 1024), signs.size()) == signs);
}

TEST_CASE("zeros and huge or tiny weights stay finite in every format") {
  for (int type = 0; type < kDTypeCount; ++type) {
    const DType dtype = static_cast<DType>(type);
    if (!is_block(dtype) || is_read_only(dtype)) continue;
    INFO(dtype_name(dtype));
    std::vector<float> x(512, 0.0f), importance(512, 0.0f);
    std::fill(importance.begin() + 40, importance.end(), 1e-6f);
    for (float value : {0.0f, 65504.0f, -65504.0f, 1e-8f, 1e-30f}) {
      x[7] = value;
      for (const float* weights : {static_cast<const float*>(nullptr), static_cast<const float*>(importance.data())})
        for (float w : decoded(dtype, encoded(dtype, x, weights, 512), 512))
          REQUIRE((std::isfinite(w) && std::fabs(w) <= 70000));
    }
    std::mt19937 random(7);
    for (int round = 0; round < 50; ++round) {
      for (size_t i = 0; i < x.size(); ++i) {
        x[i] = random() % 50 ? static_cast<float>(random() % 201) * 1e-3f - 0.1f : random() % 2 ? 65504.0f : -65504.0f;
        importance[i] = random() % 5 ? 1.0f : 0.0f;
      }
      for (float w : decoded(dtype, encoded(dtype, x, importance.data(), 512), 512)) REQUIRE(std::isfinite(w));
    }
    if (dtype == DType::q1_0 || dtype == DType::one_bit) continue;  // have no zero
    x.assign(512, 0.0f);
    CHECK(decoded(dtype, encoded(dtype, x, nullptr, 512), 512) == x);
  }
}

TEST_CASE("quantize packs a tensor by rows, the same with any source dtype that holds the values") {
  Device device(make_cpu_backend(2));
  const TensorPtr x = make_tensor(device, {5, 3, 256}, DType::bf16);
  fill_normal(*x, 0.05, 1, 0);
  const TensorPtr y = quantize(x, DType::q4_k);
  CHECK(shape_text(y->view) == "q4_k [5, 3, 256]");
  const TensorPtr wide = make_tensor(device, {5, 3, 256}, DType::f32);
  copy_into(*wide, *x);
  const TensorPtr same = quantize(wide, DType::q4_k);
  CHECK(std::memcmp(y->view.data, same->view.data, y->view.bytes()) == 0);
  const TensorPtr importance = make_zeros(device, {256}, DType::f32);
  device.run(Fill{importance->view, 2});
  CHECK(quantize(x, DType::q4_k, importance)->view.bytes() == y->view.bytes());
}

TEST_CASE("only how importances of a block compare counts: not their size, and zeros alone are as ones") {
  Device device(make_cpu_backend(1));
  const TensorPtr x = make_tensor(device, {2, 512}, DType::f32), importance = make_tensor(device, {512}, DType::f32);
  fill_normal(*x, 0.05, 1, 0);
  const auto packed = [&](DType dtype, auto importance_of) {
    for (int i = 0; i < 512; ++i) importance->view.as<float>()[i] = importance_of(i);
    const TensorPtr y = quantize(x, dtype, importance);
    const char* bytes = static_cast<const char*>(y->view.data);
    return std::vector<char>(bytes, bytes + y->view.bytes());
  };
  const auto ones = [](int) { return 1.0f; };
  for (int type = 0; type < kDTypeCount; ++type) {
    const DType dtype = static_cast<DType>(type);
    if (!is_block(dtype) || is_read_only(dtype)) continue;
    INFO(dtype_name(dtype));
    const auto scaled = [&](float scale) {
      return packed(dtype, [&](int i) { return scale * static_cast<float>(1 + i % 7); });
    };
    const std::vector<char> expected = scaled(1);
    CHECK((scaled(0x1p120f) == expected && scaled(0x1p-120f) == expected));
    // Of no importance at all, and the first half of it: those weights stay weights.
    CHECK(scaled(0) == packed(dtype, ones));
    CHECK(packed(dtype, [](int i) { return i < 256 ? 0.0f : 1.0f; }) == packed(dtype, ones));
  }
}

TEST_CASE("quantize refuses what it cannot pack, and says what would do") {
  Device device(make_cpu_backend(1));
  const TensorPtr x = make_zeros(device, {2, 96}, DType::f32), i = make_zeros(device, {2, 256}, DType::i32);
  CHECK_THROWS_WITH(quantize(x, DType::q4_k),
                    containing("not whole blocks of 256 of q4_k; q8_0, q5_0, q4_0 and iq4_nl take multiples of 32"));
  CHECK_THROWS_WITH(quantize(x, DType::bf16), containing("bf16 is no block format; :to() converts to it"));
  CHECK_THROWS_WITH(quantize(i, DType::q8_0), containing("i32 [2, 256], expected f32, bf16 or f16"));
  CHECK_THROWS_WITH(quantize(x, DType::q8_0, make_zeros(device, {95}, DType::f32)),
                    containing("importance is f32 [95], expected f32 [96]"));
  const TensorPtr negative = make_zeros(device, {96}, DType::f32);
  negative->view.as<float>()[3] = -1;
  CHECK_THROWS_WITH(quantize(x, DType::q8_0, negative), containing("importance of column 3 is -1"));
  x->view.as<float>()[100] = INFINITY;
  CHECK_THROWS_WITH(quantize(x, DType::q8_0), containing("row 1 of f32 [2, 96] holds a weight that is not finite"));
}

TEST_CASE("the squared error of interleaved rows is that of rows in order, in pieces too") {
  Device device(make_cpu_backend(2));
  const TensorPtr x = make_tensor(device, {21888, 768}, DType::tq2_0);  // more rows than a piece takes, 21845
  std::memset(x->view.data, 0x24, x->view.bytes());
  std::memset(x->view.as<char>() + x->view.bytes() - 66, 0x18, 64);  // the last block has other codes
  const TensorPtr y = make_tensor(device, {21888, 768}, DType::tq2_0);
  copy_into(*y, *x);
  const double total = squared_error(x, y).total;
  y->view = interleave(y->view, 2);
  const SquaredError same = squared_error(x, y);
  CHECK(same.error == 0);
  CHECK(same.total == Approx(total));
  CHECK(total > 0);
}
