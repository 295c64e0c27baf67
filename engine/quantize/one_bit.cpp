#include "engine/quantize/one_bit.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/blocks.h"
#include "kernels/math/blocks/one_bit.h"
#include "kernels/math/blocks/ternary.h"
#include "kernels/parallel.h"
#include "kernels/view_text.h"

namespace qeng {
namespace {

constexpr int64_t kPieceBytes = 1 << 16;  // that a thread counts at a time

// The bytes of x where the host can read them: its own, or a copy.
struct HostBytes {
  explicit HostBytes(const Tensor& x) : data(x.view.data) {
    Backend& backend = x.device().backend();
    if (backend.host_memory()) {
      backend.synchronize();
      return;
    }
    copy.resize(x.view.bytes());
    read_bytes(x, copy.data());
    data = copy.data();
  }
  std::vector<char> copy;
  const void* data;
};

void check_bits(const char* what, const Tensor& x) {
  if (x.view.dtype != DType::one_bit)
    fail("dtype", "count_bits: ", what, " is ", shape_text(x.view), ", expected a one_bit tensor");
  if (x.device().capturing())
    fail("value",
         "count_bits: a program that is being captured has no values yet: count after run(), or do without capturing");
}

int64_t count(const void* a, const void* b, size_t bytes) {
  const auto size = static_cast<int64_t>(bytes);
  std::atomic<int64_t> total = 0;
  parallel_for(available_threads(), (size + kPieceBytes - 1) / kPieceBytes, 1, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kPieceBytes, last = std::min(size, end * kPieceBytes);
    const char *x = static_cast<const char*>(a) + first, *y = b ? static_cast<const char*>(b) + first : nullptr;
    total += count_bits(x, y, last - first);
  });
  return total;
}

}  // namespace

int64_t count_set_bits(const Tensor& x) {
  check_bits("x", x);
  const HostBytes bytes(x);
  return count(bytes.data, nullptr, x.view.bytes());
}

int64_t count_differing_bits(const Tensor& x, const Tensor& y) {
  check_bits("x", x), check_bits("y", y);
  if (!x.view.same_shape(y.view))
    fail("shape", "count_bits: ", shape_text(x.view), " and ", shape_text(y.view), " differ in shape");
  const HostBytes a(x), b(y);
  return count(a.data, b.data, x.view.bytes());
}

// ---------------------------------------------------------------- GGUF's formats

namespace {

using blocks::OneBit;
using blocks::Q1_0;
using blocks::Ternary;
using blocks::TQ2_0;

// The codes of a block without its scale, from and to blocks of 32 without one. False: a code that those lack.
void join_codes(const OneBit* from, Q1_0& to) { std::memcpy(to.qs, from, sizeof to.qs); }
bool split_codes(const Q1_0& from, OneBit* to) {
  std::memcpy(to, from.qs, sizeof from.qs);
  return true;
}
void join_codes(const Ternary* from, TQ2_0& to) {
  uint8_t codes[256];
  for (int k = 0; k < 256; ++k) codes[k] = static_cast<uint8_t>(code(from[k / 32], k % 32) + 1);
  blocks::put_codes(codes, to);
}
bool split_codes(const TQ2_0& from, Ternary* to) {
  float values[256];
  bool known = true;
  for (int k = 0; k < 256; ++k) values[k] = static_cast<float>(code(from, k)), known = known && values[k] < 2;
  for (int b = 0; b < 8; ++b) encode(values + 32 * b, nullptr, to[b]);
  return known;
}
bool has_scale(const Q1_0&) { return true; }
bool has_scale(const TQ2_0& b) {  // not where all are zero
  for (int k = 0; k < 256; ++k)
    if (code(b, k) != 0) return true;
  return false;
}

template <class Plain, class Packed>
void join_row(const char* from, f16 d, int64_t count, char* to) {
  const auto* plain = reinterpret_cast<const Plain*>(from);
  auto* packed = reinterpret_cast<Packed*>(to);
  for (int64_t b = 0; b < count; ++b) {
    packed[b].d = d;
    join_codes(plain + b * (Packed::kElements / Plain::kElements), packed[b]);
  }
}

template <class Plain, class Packed>
float split_row(const char* from, int64_t count, char* to, const std::string& name, int64_t row) {
  const auto* packed = reinterpret_cast<const Packed*>(from);
  auto* plain = reinterpret_cast<Plain*>(to);
  const Packed* first = nullptr;
  for (int64_t b = 0; b < count; ++b) {
    if (!split_codes(packed[b], plain + b * (Packed::kElements / Plain::kElements)))
      fail("value", "split_row_scale: block ", b, " of row ", row, " of ", name,
           " has a weight of twice its scale, which ternary lacks");
    if (!has_scale(packed[b])) continue;
    if (first && first->d.bits != packed[b].d.bits)
      fail("value", "split_row_scale: row ", row, " of ", name, " has blocks of scale ", to_f32(first->d), " and ",
           to_f32(packed[b].d), "; one scale a row is needed: keep this tensor in its format");
    if (!first) first = packed + b;
  }
  return first ? to_f32(first->d) : 0.0f;
}

std::vector<char> host_copy(const Tensor& x) {
  std::vector<char> bytes(x.view.bytes());
  read_bytes(x, bytes.data());
  return bytes;
}
TensorPtr from_bytes(Device& device, const Shape& shape, DType dtype, const std::vector<char>& bytes,
                     const std::string& account) {
  TensorPtr x = make_tensor(device, shape, dtype, account);
  if (!bytes.empty()) device.backend().upload(x->view.data, bytes.data(), bytes.size());
  return x;
}

}  // namespace

TensorPtr join_row_scale(const TensorPtr& w, const TensorPtr& scale, DType type, const std::string& account) {
  const View& from = w->view;
  const bool bits = from.dtype == DType::one_bit,
             dense = type == DType::f32 || type == DType::bf16 || type == DType::f16;
  if (!bits && from.dtype != DType::ternary)
    fail("dtype", "join_row_scale: w is ", shape_text(from), ", expected one_bit or ternary");
  const DType exact = bits ? DType::q1_0 : DType::tq2_0;
  if (!dense && type != exact)
    fail("dtype", "join_row_scale: ", dtype_name(from.dtype), " weights become ", dtype_name(exact),
         ", f32, bf16 or f16, not ", dtype_name(type));
  const int64_t rows = from.rows(), columns = from.columns(), elements = dtype_info(type).elements;
  if (scale->view.dtype != DType::f32 || scale->view.elements() != rows)
    fail("shape", "join_row_scale: scale is ", shape_text(scale->view), ", expected f32 [", rows, "]");
  if (columns % elements != 0)
    fail("shape", "join_row_scale: w is ", shape_text(from), ", and blocks of ", dtype_name(type), " hold ", elements,
         ": rows of this length fit f16, bf16 and f32");
  const std::vector<char> plain = host_copy(*w);
  const std::vector<float> scales = to_host_f32(*scale);
  for (int64_t r = 0; r < rows; ++r)
    if (const float s = scales[static_cast<size_t>(r)]; !(s <= 65504.0f && s >= -65504.0f))
      fail("value", "join_row_scale: the scale of row ", r, " is ", s, ", which f16 does not hold");
  const DType made = dense ? DType::f32 : type;
  const size_t plain_row = dtype_bytes(from.dtype, columns), joined_row = dtype_bytes(made, columns);
  std::vector<char> joined(static_cast<size_t>(rows) * joined_row);
  parallel_for(available_threads(), rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const char* row = plain.data() + static_cast<size_t>(r) * plain_row;
      char* to = joined.data() + static_cast<size_t>(r) * joined_row;
      const float s = scales[static_cast<size_t>(r)];
      if (dense) {
        auto* values = reinterpret_cast<float*>(to);
        decode_row(from.dtype, row, 0, columns, values);
        for (int64_t k = 0; k < columns; ++k) values[k] *= s;
      } else if (bits) {
        join_row<OneBit, Q1_0>(row, to_f16(s), columns / elements, to);
      } else {
        join_row<Ternary, TQ2_0>(row, to_f16(s), columns / elements, to);
      }
    }
  });
  const Shape shape(from.shape, from.shape + from.rank);
  const TensorPtr result = from_bytes(w->device(), shape, made, joined, account);
  if (made == type) return result;
  const TensorPtr cast = make_tensor(w->device(), shape, type, account);
  copy_into(*cast, *result);
  return cast;
}

RowScaled split_row_scale(const TensorPtr& packed, const std::string& account) {
  const View& from = packed->view;
  const DType format = from.dtype;
  const bool bits = format == DType::q1_0;
  if (!bits && format != DType::tq2_0)
    fail("dtype", "split_row_scale: the tensor is ", shape_text(from), ", expected q1_0 or tq2_0");
  const DType type = bits ? DType::one_bit : DType::ternary;
  const int64_t rows = from.rows(), count = from.columns() / dtype_info(format).elements;
  const size_t from_bytes_a_row = dtype_bytes(format, from.columns()),
               to_bytes_a_row = dtype_bytes(type, from.columns());
  const std::vector<char> blocks = host_copy(*packed);
  std::vector<char> plain(static_cast<size_t>(rows) * to_bytes_a_row);
  std::vector<double> scales(static_cast<size_t>(rows));
  const std::string name = packed->label.empty() ? "the tensor" : packed->label;
  for (int64_t r = 0; r < rows; ++r) {
    const char* row = blocks.data() + static_cast<size_t>(r) * from_bytes_a_row;
    char* to = plain.data() + static_cast<size_t>(r) * to_bytes_a_row;
    scales[static_cast<size_t>(r)] =
        bits ? split_row<OneBit, Q1_0>(row, count, to, name, r) : split_row<Ternary, TQ2_0>(row, count, to, name, r);
  }
  RowScaled result{from_bytes(packed->device(), Shape(from.shape, from.shape + from.rank), type, plain, account),
                   make_tensor(packed->device(), {rows}, DType::f32, account)};
  from_host(*result.scale, scales.data(), scales.size());
  return result;
}

}  // namespace qeng
