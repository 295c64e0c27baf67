#include "engine/quantize/packed_int4.h"

#include <cmath>

#include "kernels/math/blocks/int4.h"
#include "kernels/parallel.h"

namespace qeng {

namespace {

constexpr int64_t kPerWord = 8;                                // nibbles of an i32
constexpr int kAwqPlace[kPerWord] = {0, 4, 1, 5, 2, 6, 3, 7};  // the nibble of a word's column 0..7

std::vector<uint32_t> words_of(const Tensor& x) {
  std::vector<uint32_t> words(static_cast<size_t>(x.view.elements()));
  if (!words.empty()) x.device().backend().download(words.data(), x.view.data, x.view.bytes());
  return words;
}

void check_matrix(const PackedInt4& packed, const char* part, const TensorPtr& x, DType dtype, int64_t rows,
                  int64_t columns) {
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

// The group of each input; empty where they follow one another.
std::vector<int64_t> order_of(const PackedInt4& packed, int64_t groups, int64_t group) {
  std::vector<int64_t> order;
  bool plain = true;
  for (float value : to_host_f32(*packed.g_idx)) {
    if (!(value >= 0 && value < static_cast<float>(groups)))
      fail("value", packed.name, ": g_idx puts input ", order.size(), " into group ", value, ", there are ", groups);
    plain &= static_cast<int64_t>(value) == static_cast<int64_t>(order.size()) / group;
    order.push_back(static_cast<int64_t>(value));
  }
  return plain ? std::vector<int64_t>() : order;
}

template <class T>
TensorPtr to_device(const PackedInt4& packed, const std::vector<T>& rows, int64_t out, int64_t in, DType dtype,
                    const std::string& account) {
  Device& device = packed.qweight->device();
  const TensorPtr result = make_tensor(device, {out, in}, dtype, account);
  if (!rows.empty()) device.backend().upload(result->view.data, rows.data(), result->view.bytes());
  return result;
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
    fail("shape", packed.name, ": qweight is ", shape_text(packed.qweight->view), ", scales ",
         shape_text(packed.scales->view), "; expected matrices");
  const int64_t out = packed.scales->view.shape[1], groups = packed.scales->view.shape[0];
  const int64_t in = packed.qweight->view.shape[0] * (awq ? 1 : kPerWord);
  if (out % kPerWord != 0 || in % 32 != 0 || groups < 1 || in % groups != 0 || in / groups % 32 != 0)
    fail("shape", packed.name, ": ", in, " inputs in ", groups, " groups and ", out,
         " outputs; expected groups of a multiple of 32 inputs, and a multiple of 8 outputs");
  check_matrix(packed, "qweight", packed.qweight, DType::i32, awq ? in : in / kPerWord, awq ? out / kPerWord : out);
  check_matrix(packed, "qzeros", packed.qzeros, DType::i32, groups, out / kPerWord);
  const int64_t group = in / groups;
  std::vector<int64_t> order;
  if (packed.g_idx) {
    if (packed.g_idx->view.dtype != DType::i32 || packed.g_idx->view.elements() != in)
      fail("shape", packed.name, ": g_idx is ", shape_text(packed.g_idx->view), ", expected i32 [", in, "]");
    order = order_of(packed, groups, group);
  }

  const std::vector<uint32_t> weights = words_of(*packed.qweight), zeros = words_of(*packed.qzeros);
  const std::vector<f16> scales = halves_of(packed);
  const auto place = [awq](int64_t column) {
    return 4 * (awq ? kAwqPlace[column % kPerWord] : static_cast<int>(column % kPerWord));
  };
  const auto code = [&](int64_t row, int64_t column) {  // of input `row`, output `column`
    const uint32_t word = awq ? weights[static_cast<size_t>(row * (out / kPerWord) + column / kPerWord)]
                              : weights[static_cast<size_t>(row / kPerWord * out + column)];
    return word >> (awq ? place(column) : 4 * static_cast<int>(row % kPerWord)) & 15u;
  };
  const auto zero_of = [&](int64_t g, int64_t column) {
    const uint32_t word = zeros[static_cast<size_t>(g * (out / kPerWord) + column / kPerWord)];
    return static_cast<int>(word >> place(column) & 15u) + (awq ? 0 : 1);
  };
  if (!order.empty()) {
    std::vector<f16> values(static_cast<size_t>(out * in));
    parallel_for(available_threads(), out, 8, [&](int64_t begin, int64_t end) {
      for (int64_t column = begin; column < end; ++column)
        for (int64_t row = 0; row < in; ++row) {
          const int64_t g = order[static_cast<size_t>(row)];
          const int distance = static_cast<int>(code(row, column)) - zero_of(g, column);
          values[static_cast<size_t>(column * in + row)] =
              to_f16(to_f32(scales[static_cast<size_t>(g * out + column)]) * static_cast<float>(distance));
        }
    });
    return to_device(packed, values, out, in, DType::f16, account);
  }
  std::vector<blocks::Int4> rows(static_cast<size_t>(out * in / 32));
  parallel_for(available_threads(), out, 8, [&](int64_t begin, int64_t end) {
    for (int64_t column = begin; column < end; ++column)
      for (int64_t first = 0; first < in; first += 32) {
        const int64_t g = first / group;
        blocks::Int4 block{};
        block.d = scales[static_cast<size_t>(g * out + column)];
        block.zero = static_cast<uint8_t>(zero_of(g, column));
        for (int j = 0; j < 16; ++j)
          block.qs[j] = static_cast<uint8_t>(code(first + j, column) | code(first + j + 16, column) << 4);
        rows[static_cast<size_t>((column * in + first) / 32)] = block;
      }
  });
  return to_device(packed, rows, out, in, DType::int4, account);
}

}  // namespace qeng
