// Layers that bitsandbytes quantized to 4 bits (NormalFloat4, of QLoRA's bases; Dettmers et al. 2023, arXiv 2305.14314),
// as the numbers that its own dequantization gives: w[i] = map[code(i)] * absmax[i / block], an f32 product rounded
// once to the dtype that the weights had.
//   W:                u8, element 2 j in the high nibble of byte j, 2 j + 1 in the low one, over the rows end to end
//   W.quant_map:      f32 [16]
//   W.absmax:         f32 [blocks]; or u8, quantized once more:
//     absmax = nested_quant_map[absmax] * nested_absmax[block / nested_blocksize] + nested_offset
//   W.nested_quant_map, W.nested_absmax: f32 [256], f32 [blocks / nested_blocksize]
//   W.quant_state.bitsandbytes__nf4: u8, JSON: shape, dtype, blocksize, nested_blocksize, nested_offset
// (bitsandbytes/functional.py: quantize_4bit, QuantState.)
#include <algorithm>
#include <cstring>

#include "engine/formats/json_depth.h"
#include "engine/formats/packed_layers.h"
#include "kernels/error.h"
#include "kernels/math/bf16.h"
#include "kernels/parallel.h"

namespace qeng {
namespace {

using nlohmann::json;

constexpr const char* kEnding = ".quant_state.bitsandbytes__nf4";
constexpr size_t kMaxStateBytes = 65536;

struct Nf4 {
  std::string where;                                                      // for messages
  const StoredTensor *codes, *map, *absmax, *nested_map, *nested_absmax;  // the last two: null where absmax is f32
  int64_t out, in, block, nested_block;
  float nested_offset;
  DType dtype;

  int64_t blocks() const { return out * in / block + (out * in % block != 0); }
};

// ---------------------------------------------------------------- values

std::vector<float> floats(const StoredTensor& stored) {
  std::vector<float> values(stored.bytes / sizeof(float));
  std::memcpy(values.data(), stored.data, values.size() * sizeof(float));
  return values;
}

std::vector<float> scales_of(const Nf4& w) {
  if (!w.nested_map) return floats(*w.absmax);
  const std::vector<float> map = floats(*w.nested_map), nested = floats(*w.nested_absmax);
  std::vector<float> scales(w.absmax->bytes);
  for (size_t i = 0; i < scales.size(); ++i) {
    const float product =
        map[static_cast<uint8_t>(w.absmax->data[i])] * nested[i / static_cast<size_t>(w.nested_block)];
    scales[i] = product + w.nested_offset;
  }
  return scales;
}

template <class T, class Round>
void decode(const Nf4& w, std::byte* out, Round round) {
  const std::vector<float> map = floats(*w.map), scales = scales_of(w);
  const auto* codes = reinterpret_cast<const uint8_t*>(w.codes->data);
  T* to = reinterpret_cast<T*>(out);
  parallel_for(available_threads(), w.blocks(), 512, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * w.block, last = std::min(end * w.block, w.out * w.in); i < last; ++i) {
      const uint8_t byte = codes[i / 2];
      to[i] = round(map[i % 2 ? byte & 15 : byte >> 4] * scales[static_cast<size_t>(i / w.block)]);
    }
  });
}

void decode(const Nf4& w, std::byte* out) {
  if (w.in % w.block != 0)
    fail("unsupported", w.where, ": rows of ", w.in, " inputs are no whole blocks of ", w.block,
         ", where bitsandbytes' own backends differ");
  if (w.dtype == DType::f32) decode<float>(w, out, [](float x) { return x; });
  if (w.dtype == DType::bf16) decode<bf16>(w, out, [](float x) { return to_bf16(x); });
  if (w.dtype == DType::f16) decode<f16>(w, out, [](float x) { return to_f16(x); });
}

// ---------------------------------------------------------------- what the file says

// A quantization state. safetensors hold it as the bytes of a JSON text.
json read_state(const std::string& where, const StoredTensor& stored) {
  if (stored.dtype != DType::u8 || stored.bytes > kMaxStateBytes)
    fail("format", where, ": quant_state is ", described(stored), ", expected u8 of at most ", kMaxStateBytes,
         " elements");
  const std::string_view text(reinterpret_cast<const char*>(stored.data), stored.bytes);
  check_json_depth(where, text);
  json state = json::parse(text, nullptr, false);
  if (!state.is_object()) fail("format", where, ": quant_state is no JSON object");
  return state;
}

int64_t size_in(const std::string& where, const json& state, const char* key, int64_t otherwise, int64_t least) {
  const auto found = state.find(key);
  if (found == state.end() || found->is_null()) return otherwise;
  const int64_t size = found->is_number_integer() ? found->get<int64_t>() : 0;
  if (size < least || size > INT32_MAX || size % least != 0)
    fail("value", where, ": ", key, " is ", found->is_structured() ? "no number" : found->dump(), ", expected a ",
         least == 2 ? "multiple of 2" : "whole number", " above 0");
  return size;
}

DType dtype_in(const std::string& where, const json& state) {
  const auto found = state.find("dtype");
  const std::string name = found != state.end() && found->is_string() ? found->get<std::string>() : "missing";
  if (name == "float32") return DType::f32;
  if (name == "bfloat16") return DType::bf16;
  if (name == "float16") return DType::f16;
  fail("format", where, ": dtype is ", name, ", expected bfloat16, float16 or float32");
}

void shape_in(Nf4& w, const json& state) {
  const auto found = state.find("shape");
  std::vector<int64_t> shape;
  for (const json& item : found != state.end() && found->is_array() ? *found : json::array())
    shape.push_back(item.is_number_integer() ? item.get<int64_t>() : 0);
  int64_t elements = 0;
  if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1 || __builtin_mul_overflow(shape[0], shape[1], &elements))
    fail("shape", w.where, ": shape is ", dims_text(shape), ", expected that of a matrix");
  if (w.codes->dtype != DType::u8 || static_cast<size_t>(elements) != 2 * w.codes->bytes)
    fail("shape", w.where, ": the weight is ", described(*w.codes), ", expected u8 of half the elements of ",
         dims_text(shape));
  w.out = shape[0], w.in = shape[1];
}

// Part W.ENDING, which is required.
const StoredTensor* part_of(const PackedLayers& layers, const Nf4& w, const char* ending, DType dtype,
                            int64_t elements) {
  const StoredTensor* found = layers.stored().find(w.codes->name + "." + ending);
  if (!found) fail("format", w.where, ": ", ending, " is missing");
  if (found->dtype != dtype || found->bytes != static_cast<size_t>(elements) * dtype_size(dtype))
    fail("shape", w.where, ": ", ending, " is ", described(*found), ", expected ", dtype_name(dtype), " of ", elements,
         " elements");
  return found;
}

Nf4 read(const PackedLayers& layers, const StoredTensor& codes, const StoredTensor& state_bytes) {
  Nf4 w{layers.file_of(codes) + ": tensor " + codes.name, &codes};
  const json state = read_state(w.where, state_bytes);
  shape_in(w, state);
  w.dtype = dtype_in(w.where, state);
  w.block = size_in(w.where, state, "blocksize", 64, 2);
  w.nested_block = size_in(w.where, state, "nested_blocksize", 256, 1);
  w.map = part_of(layers, w, "quant_map", DType::f32, 16);
  const StoredTensor* absmax = layers.stored().find(codes.name + ".absmax");
  const bool nested = absmax && absmax->dtype == DType::u8;
  w.absmax = part_of(layers, w, "absmax", nested ? DType::u8 : DType::f32, w.blocks());
  if (!nested) return w;
  w.nested_map = part_of(layers, w, "nested_quant_map", DType::f32, 256);
  w.nested_absmax = part_of(layers, w, "nested_absmax", DType::f32, (w.blocks() - 1) / w.nested_block + 1);
  const auto offset = state.find("nested_offset");
  if (offset != state.end() && !offset->is_null() && !offset->is_number())
    fail("format", w.where, ": nested_offset is no number");
  if (offset != state.end() && offset->is_number()) w.nested_offset = static_cast<float>(offset->get<double>());
  return w;
}

const Packing bitsandbytes("bitsandbytes", [](PackedLayers& layers) {
  layers.require("load_in_4bit", true);
  layers.require("bnb_4bit_quant_type", "nf4");
  layers.allow("bnb_4bit_quant_storage", "uint8");
  for (const StoredTensor& state : layers.stored().tensors()) {
    if (!state.name.ends_with(kEnding)) continue;
    const std::string name = state.name.substr(0, state.name.size() - std::strlen(kEnding));
    const StoredTensor* codes = layers.stored().find(name);
    if (!codes)
      fail("format", layers.file_of(state), ": tensor ", name, " is missing, whose quantization state is there");
    const Nf4 w = read(layers, *codes, state);
    std::vector<const StoredTensor*> parts = {codes, &state, w.map, w.absmax};
    if (w.nested_map) parts.insert(parts.end(), {w.nested_map, w.nested_absmax});
    layers.join(name, {w.out, w.in}, std::move(parts),
                {"nf4", w.dtype, false, [w](std::byte* out) { decode(w, out); }});
  }
  layers.remark("weights of bitsandbytes' NF4 are decoded, and take four times their size in memory");
});

}  // namespace
}  // namespace qeng
