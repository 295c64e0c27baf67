#include "engine/quantize/nf4.h"

#include <algorithm>

#include "kernels/math/bf16.h"
#include "kernels/parallel.h"

namespace qeng {
namespace {

std::vector<uint8_t> bytes_of(const Tensor& x) {
  std::vector<uint8_t> bytes(x.view.bytes());
  read_bytes(x, bytes.data());
  return bytes;
}

void check(const Nf4& packed, const char* part, const TensorPtr& x, DType dtype, int64_t elements) {
  if (!x) fail("format", packed.name, ": ", part, " is missing");
  if (x->view.dtype != dtype || x->view.elements() != elements)
    fail("shape", packed.name, ": ", part, " is ", shape_text(x->view), ", expected ", dtype_name(dtype), " of ",
         elements, " elements");
}

std::vector<float> scales_of(const Nf4& packed, int64_t blocks) {
  if (packed.absmax && packed.absmax->view.dtype == DType::f32) {
    check(packed, "absmax", packed.absmax, DType::f32, blocks);
    return to_host_f32(*packed.absmax);
  }
  check(packed, "absmax", packed.absmax, DType::u8, blocks);
  check(packed, "nested_quant_map", packed.nested_map, DType::f32, 256);
  check(packed, "nested_absmax", packed.nested_absmax, DType::f32,
        (blocks + packed.nested_block - 1) / packed.nested_block);
  const std::vector<uint8_t> codes = bytes_of(*packed.absmax);
  const std::vector<float> map = to_host_f32(*packed.nested_map), nested = to_host_f32(*packed.nested_absmax);
  std::vector<float> scales(codes.size());
  for (size_t i = 0; i < scales.size(); ++i) {
    const float product = map[codes[i]] * nested[i / static_cast<size_t>(packed.nested_block)];
    scales[i] = product + static_cast<float>(packed.nested_offset);
  }
  return scales;
}

template <class T, class Round>
void decode(const std::vector<uint8_t>& codes, const std::vector<float>& scales, const float* map, int64_t block, T* to,
            Round round) {
  parallel_for(available_threads(), static_cast<int64_t>(scales.size()), 512, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * block, last = std::min(end * block, 2 * static_cast<int64_t>(codes.size())); i < last;
         ++i) {
      const uint8_t byte = codes[static_cast<size_t>(i / 2)];
      to[i] = round(map[i % 2 ? byte & 15 : byte >> 4] * scales[static_cast<size_t>(i / block)]);
    }
  });
}

}  // namespace

TensorPtr decode_nf4(const Nf4& packed, int64_t out, int64_t in, DType dtype, const std::string& account) {
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16)
    fail("dtype", packed.name, ": ", dtype_name(dtype), " is none of f32, bf16, f16");
  if (packed.block < 2 || packed.block % 2 || packed.nested_block < 1)
    fail("value", packed.name, ": blocks of ", packed.block, " and nested blocks of ", packed.nested_block,
         " are not to be had");
  if (out < 1 || in < 1 || in % packed.block != 0)
    fail("unsupported", packed.name, ": rows of ", in, " inputs are no whole blocks of ", packed.block,
         ", where bitsandbytes' own backends differ");
  check(packed, "quant_map", packed.map, DType::f32, 16);
  check(packed, "the weight", packed.codes, DType::u8, out * in / 2);
  const std::vector<float> map = to_host_f32(*packed.map),
                           scales = scales_of(packed, (out * in + packed.block - 1) / packed.block);
  const std::vector<uint8_t> codes = bytes_of(*packed.codes);
  const TensorPtr result = make_tensor(packed.codes->device(), {out, in}, dtype, account);
  std::vector<uint8_t> values(result->view.bytes());
  if (dtype == DType::f32)
    decode(codes, scales, map.data(), packed.block, reinterpret_cast<float*>(values.data()), [](float x) { return x; });
  if (dtype == DType::bf16)
    decode(codes, scales, map.data(), packed.block, reinterpret_cast<bf16*>(values.data()),
           [](float x) { return to_bf16(x); });
  if (dtype == DType::f16)
    decode(codes, scales, map.data(), packed.block, reinterpret_cast<f16*>(values.data()),
           [](float x) { return to_f16(x); });
  write_bytes(*result, values.data());
  return result;
}

}  // namespace qeng
