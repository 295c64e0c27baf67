#include "tests/conformance/draw.h"

#include <algorithm>
#include <cstring>

#include "kernels/math/blocks/with_block.h"

namespace qeng::conformance {

int64_t Draw::integer(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
}

double Draw::uniform(double low, double high) {
  return low + (high - low) * std::ldexp(static_cast<double>(engine_() >> 11), -53);
}

double Draw::normal() {
  return std::sqrt(-2 * std::log(uniform(0x1p-53, 1))) * std::cos(2 * 3.14159265358979323846 * uniform(0, 1));
}

int64_t Draw::size(int64_t most) {
  const int64_t choice = integer(0, 3);
  if (choice == 0) return std::min<int64_t>(most, integer(1, 4));
  if (choice == 1) return std::min(most, std::max<int64_t>(1, (int64_t{1} << integer(2, 7)) + integer(-1, 1)));
  return integer(1, most);
}

View Draw::empty(DType dtype, std::initializer_list<int64_t> shape) {
  View view(nullptr, dtype, shape);
  const size_t front = kGuard + (misaligned_ ? dtype_size(dtype) * static_cast<size_t>(integer(0, 7)) : 0);
  buffers_.push_back({std::vector<unsigned char>(front + view.bytes() + kGuard, kPoison), front});
  view.data = buffers_.back().tensor();
  return view;
}

View Draw::tensor(DType dtype, std::initializer_list<int64_t> shape, double deviation, double mean) {
  const View view = empty(dtype, shape);
  if (is_block(dtype)) return fill_blocks(view, deviation), view;
  for (int64_t i = 0; i < view.elements(); ++i) encode(view, i, mean + deviation * normal());
  return view;
}

DType Draw::block_format() {
  const int64_t first = static_cast<int64_t>(DType::q4_0), last = kDTypeCount - 1;
  return static_cast<DType>(integer(first, last));
}

DType Draw::stored_dtype(DType arithmetic) {
  if (integer(0, 3)) return block_format();
  return arithmetic == DType::f32 && flip() ? DType::bf16 : DType::f16;
}

int64_t Draw::row_length(DType dtype, int64_t most) {
  const int64_t block = dtype_info(dtype).elements;
  return block == 1 ? size(most) : block * integer(1, std::max<int64_t>(1, most / block));
}

void Draw::fill_blocks(const View& view, double deviation) {
  blocks::with_block(view.dtype, [&](auto tag) {
    using Block = decltype(tag);
    for (int64_t i = 0; i < view.elements() / Block::kElements; ++i) {
      Block b;
      unsigned char bytes[sizeof b];
      for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(integer(0, 255));
      std::memcpy(&b, bytes, sizeof b);
      const auto set_scales = [&](double d) {
        if constexpr (requires { b.d; }) b.d = to_f16(static_cast<float>(d));
        if constexpr (std::is_same_v<Block, blocks::IQ1_M>)
          for (int part = 0; part < 4; ++part)
            b.scales[part] = static_cast<uint16_t>((b.scales[part] & 0xfff) |
                                                   (to_f16(static_cast<float>(d)).bits >> (4 * part) & 15) << 12);
        if constexpr (requires { b.dmin; }) b.dmin = to_f16(static_cast<float>(0.6 * d));
        if constexpr (requires { b.m; }) b.m = to_f16(static_cast<float>(-8 * d));
        if constexpr (requires { b.e; }) b.e = static_cast<uint8_t>(128 + std::ilogb(d));
        if constexpr (requires { b.zero; }) b.zero = static_cast<uint8_t>(b.zero % 17);
      };
      set_scales(1);
      float values[Block::kElements];
      blocks::decode(b, 0, Block::kElements, values);
      double sum = 1e-6;
      for (float value : values) sum += static_cast<double>(value) * value / Block::kElements;
      set_scales(deviation * uniform(0.5, 2) * (flip() ? 1 : -1) / std::sqrt(sum));
      std::memcpy(static_cast<unsigned char*>(view.data) + static_cast<size_t>(i) * sizeof b, &b, sizeof b);
    }
  });
}

View Draw::values(DType dtype, std::vector<double> list) {
  const View view = empty(dtype, {static_cast<int64_t>(list.size())});
  for (size_t i = 0; i < list.size(); ++i) encode(view, static_cast<int64_t>(i), list[i]);
  return view;
}

View Draw::tokens(int64_t count, int64_t below) {
  std::vector<double> list(static_cast<size_t>(count));
  for (double& token : list) token = static_cast<double>(integer(0, below - 1));
  return values(DType::i32, list);
}

View Draw::rng() {
  return values(DType::i64,
                {static_cast<double>(integer(0, int64_t{1} << 40)), static_cast<double>(integer(0, int64_t{1} << 33))});
}

View Draw::like(const View& view) {
  const View result = empty_like(view);
  if (is_block(view.dtype)) return fill_blocks(result, 1), result;
  for (int64_t i = 0; i < result.elements(); ++i) encode(result, i, normal());
  return result;
}

View Draw::resized(const View& view, DType dtype) {
  View result = empty(dtype, {view.elements()});
  result.rank = view.rank;
  std::copy(view.shape, view.shape + kMaxRank, result.shape);
  return result;
}

Documents Draw::documents(int64_t most_documents, int64_t most_tokens) {
  return documents(most_documents, [&] { return size(most_tokens); });
}

Documents Draw::documents(int64_t most_documents, std::initializer_list<int64_t> lengths) {
  return documents(most_documents, [&] { return pick(lengths); });
}

Documents Draw::documents(int64_t most_documents, const std::function<int64_t()>& length) {
  const int64_t count = integer(0, most_documents);
  const bool decoding = flip();  // fewer queries than keys
  std::vector<double> cu_q{0}, cu_k{0};
  for (int64_t s = 0; s < count; ++s) {
    const int64_t keys = integer(0, 4) == 0 ? 0 : length();
    const int64_t queries = decoding && keys ? std::min(keys, size(keys)) : keys;
    cu_q.push_back(cu_q.back() + static_cast<double>(queries));
    cu_k.push_back(cu_k.back() + static_cast<double>(keys));
  }
  Documents documents;
  const bool itself = !decoding && flip();  // keys are of the same rows as queries
  documents.cu_q = values(DType::i32, cu_q), documents.cu_k = itself ? documents.cu_q : values(DType::i32, cu_k);
  documents.queries = static_cast<int64_t>(cu_q.back()) + (flip() ? integer(1, 9) : 0);
  documents.keys = itself ? documents.queries : static_cast<int64_t>(cu_k.back()) + (flip() ? integer(1, 9) : 0);
  documents.queries = std::max<int64_t>(documents.queries, 1), documents.keys = std::max<int64_t>(documents.keys, 1);
  return documents;
}

}  // namespace qeng::conformance
