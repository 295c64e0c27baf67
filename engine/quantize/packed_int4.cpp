#include "engine/quantize/packed_int4.h"

#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/math/blocks/int4.h"

namespace qeng {

namespace {

constexpr int64_t kPerWord = 8;  // nibbles of an i32
constexpr int kAwqPlace[kPerWord] = {0, 4, 1, 5, 2, 6, 3, 7};  // the nibble of a word's column 0..7

std::vector<uint32_t> words_of(const Tensor& x) {
  std::vector<uint32_t> words(static_cast<size_t>(x.view.elements()));
  if (!words.empty()) x.device().backend().download(words.data(), x.view.data, x.view.bytes());
  return words;
}

void check_matrix(const PackedInt4& packed, const char* part, const TensorPtr& x, DType dtype, int64_t rows, int64_t columns) {
  const View expected(nullptr, dtype, {rows, columns});
  if (x->view.dtype != dtype || !x->view.same_shape(expected))
    fail("shape", packed.name, ": ", part, " is ", shape_text(x->view), ", expected ", shape_text(expected));
}

std::vector<f16> halves_of(const PackedInt4& packed) {
  const std::vector<float> values = to_host_f32(*packed.scales);
  std::vector<f16> halves;
  for (float value : values) {
    halves.push_back(to_f16(value));
    if (to_f32(halves.back()) != value)
      fail("value", packed.name, ": the scale ", value, " is not a half-precision number, in which scales are kept");
  }
  return halves;
}

void check_order(const PackedInt4& packed, int64_t group) {
  const std::vector<float> groups = to_host_f32(*packed.g_idx);
  for (size_t i = 0; i < groups.size(); ++i)
    if (groups[i] != static_cast<float>(static_cast<int64_t>(i) / group))
      fail("unsupported", packed.name, ": g_idx puts input ", i, " into group ", groups[i],
           ", so the weights were quantized with act-order (desc_act), which is not supported; use the model quantized with "
           "desc_act = false, or quantize the original with recipes/quantize.lua");
}

}  // namespace

Int4Layout int4_layout_from_name(const std::string& name) {
  if (name == "awq") return Int4Layout::awq;
  if (name == "gptq") return Int4Layout::gptq;
  fail("value", "unknown layout of int4 weights '", name, "': awq or gptq");
}

TensorPtr repack_int4(const PackedInt4& packed, Int4Layout layout, const std::string& account) {
  const bool awq = layout == Int4Layout::awq;
  if (packed.qweight->view.rank != 2 || packed.scales->view.rank != 2)
    fail("shape", packed.name, ": qweight is ", shape_text(packed.qweight->view), ", scales ", shape_text(packed.scales->view),
         "; expected matrices");
  const int64_t out = packed.scales->view.shape[1], groups = packed.scales->view.shape[0];
  const int64_t in = packed.qweight->view.shape[0] * (awq ? 1 : kPerWord);
  if (out % kPerWord != 0 || in % 32 != 0 || groups < 1 || in % groups != 0 || in / groups % 32 != 0)
    fail("shape", packed.name, ": ", in, " inputs in ", groups, " groups and ", out,
         " outputs; expected groups of a multiple of 32 inputs, and a multiple of 8 outputs");
  check_matrix(packed, "qweight", packed.qweight, DType::i32, awq ? in : in / kPerWord, awq ? out / kPerWord : out);
  check_matrix(packed, "qzeros", packed.qzeros, DType::i32, groups, out / kPerWord);
  const int64_t group = in / groups;
  if (packed.g_idx) {
    if (packed.g_idx->view.dtype != DType::i32 || packed.g_idx->view.elements() != in)
      fail("shape", packed.name, ": g_idx is ", shape_text(packed.g_idx->view), ", expected i32 [", in, "]");
    check_order(packed, group);
  }

  const std::vector<uint32_t> weights = words_of(*packed.qweight), zeros = words_of(*packed.qzeros);
  const std::vector<f16> scales = halves_of(packed);
  const auto place = [awq](int64_t column) { return 4 * (awq ? kAwqPlace[column % kPerWord] : static_cast<int>(column % kPerWord)); };
  const auto code = [&](int64_t row, int64_t column) {  // of input `row`, output `column`
    const uint32_t word = awq ? weights[static_cast<size_t>(row * (out / kPerWord) + column / kPerWord)]
                              : weights[static_cast<size_t>(row / kPerWord * out + column)];
    return word >> (awq ? place(column) : 4 * static_cast<int>(row % kPerWord)) & 15u;
  };
  std::vector<blocks::Int4> rows(static_cast<size_t>(out * in / 32));
  parallel_for(available_threads(), out, 8, [&](int64_t begin, int64_t end) {
    for (int64_t column = begin; column < end; ++column)
      for (int64_t first = 0; first < in; first += 32) {
        const int64_t g = first / group;
        blocks::Int4 block{};
        block.d = scales[static_cast<size_t>(g * out + column)];
        const uint32_t zero = zeros[static_cast<size_t>(g * (out / kPerWord) + column / kPerWord)] >> place(column) & 15u;
        block.zero = static_cast<uint8_t>(zero + (awq ? 0 : 1));
        for (int j = 0; j < 16; ++j)
          block.qs[j] = static_cast<uint8_t>(code(first + j, column) | code(first + j + 16, column) << 4);
        rows[static_cast<size_t>((column * in + first) / 32)] = block;
      }
  });
  Device& device = packed.qweight->device();
  const TensorPtr result = make_tensor(device, {out, in}, DType::int4, account);
  if (!rows.empty()) device.backend().upload(result->view.data, rows.data(), result->view.bytes());
  return result;
}

}  // namespace qeng
