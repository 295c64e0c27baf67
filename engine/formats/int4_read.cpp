// Layers that AWQ and GPTQ quantized to 4 bits, as int4 blocks (kernels/math/blocks/int4.h) of [out, in] rows: the same
// numbers, w = scale (q - zero). Groups of 32 k inputs share a scale and a zero point.
//   awq   (AutoAWQ "gemm")  qweight: [in, out / 8] i32, nibble j of a word is column 8 c + {0, 2, 4, 6, 1, 3, 5, 7}[j]
//                           qzeros:  [groups, out / 8] i32, packed alike
//   gptq  (AutoGPTQ, v1)    qweight: [in / 8, out] i32, nibble j of a word is row 8 r + j
//                           qzeros:  [groups, out / 8] i32, nibble j is column 8 c + j, stored minus one
//   scales: [groups, out] f16 (or another float whose values halves can hold)
//   g_idx: [in] i32, the group of each input; without it input i is of group i / (in / groups)
// With a g_idx out of order (GPTQ's act-order, desc_act) no block has one scale: such weights become f16, each the
// product of its f16 scale and q - zero rounded once, which is what the project's own dequantization gives.
// (The packing code of the two projects; Lin et al. 2023, arXiv 2306.00978; Frantar et al. 2022, arXiv 2210.17323.)
#include <cstring>

#include "engine/formats/packed_layers.h"
#include "kernels/error.h"
#include "kernels/math/blocks/int4.h"
#include "kernels/parallel.h"

namespace qeng {
namespace {

constexpr int64_t kPerWord = 8;                                // nibbles of an i32
constexpr int kAwqPlace[kPerWord] = {0, 4, 1, 5, 2, 6, 3, 7};  // the nibble of a word's column 0..7
constexpr const char* kEnding = ".qweight";

// A layer's tensors, whose shapes fit each other. They may lie unaligned.
struct Layer {
  std::string where;  // for messages
  bool awq;
  const StoredTensor *qweight, *qzeros, *scales, *g_idx;  // g_idx may be null
  int64_t out, in, groups;

  int64_t group() const { return in / groups; }
};

template <class T>
T element(const StoredTensor& stored, int64_t i) {
  T value;
  std::memcpy(&value, stored.data + static_cast<size_t>(i) * sizeof(T), sizeof(T));
  return value;
}

float number(const StoredTensor& stored, int64_t i) {
  if (stored.dtype == DType::f16) return to_f32(element<f16>(stored, i));
  return stored.dtype == DType::bf16 ? to_f32(element<bf16>(stored, i)) : element<float>(stored, i);
}

std::vector<f16> halves_of(const Layer& layer) {
  std::vector<f16> halves(static_cast<size_t>(layer.groups * layer.out));
  for (size_t i = 0; i < halves.size(); ++i) {
    const float value = number(*layer.scales, static_cast<int64_t>(i));
    halves[i] = to_f16(value);
    if (to_f32(halves[i]) != value)
      fail("value", layer.where, ": the scale ", value, " is not a half-precision number, in which scales are kept");
  }
  return halves;
}

// The group of each input; empty where they follow one another.
std::vector<int32_t> order_of(const Layer& layer) {
  if (!layer.g_idx) return {};
  std::vector<int32_t> order(static_cast<size_t>(layer.in));
  bool plain = true;
  for (int64_t i = 0; i < layer.in; ++i) {
    const auto group = element<int32_t>(*layer.g_idx, i);
    if (group < 0 || group >= layer.groups)
      fail("value", layer.where, ": g_idx puts input ", i, " into group ", group, ", there are ", layer.groups);
    plain &= group == i / layer.group();
    order[static_cast<size_t>(i)] = group;
  }
  return plain ? std::vector<int32_t>() : order;
}

// ---------------------------------------------------------------- values

// The nibble of a word at column `column`, in bits.
int place(const Layer& layer, int64_t column) {
  const int64_t k = column % kPerWord;
  return 4 * (layer.awq ? kAwqPlace[k] : static_cast<int>(k));
}

unsigned code(const Layer& layer, int64_t row, int64_t column) {  // of input `row`, output `column`
  const int64_t word =
      layer.awq ? row * (layer.out / kPerWord) + column / kPerWord : row / kPerWord * layer.out + column;
  const int shift = layer.awq ? place(layer, column) : 4 * static_cast<int>(row % kPerWord);
  return element<uint32_t>(*layer.qweight, word) >> shift & 15u;
}

int zero_of(const Layer& layer, int64_t group, int64_t column) {
  const auto word = element<uint32_t>(*layer.qzeros, group * (layer.out / kPerWord) + column / kPerWord);
  return static_cast<int>(word >> place(layer, column) & 15u) + (layer.awq ? 0 : 1);
}

void to_halves(const Layer& layer, std::byte* out) {
  const std::vector<int32_t> order = order_of(layer);
  const std::vector<f16> scales = halves_of(layer);
  auto* values = reinterpret_cast<f16*>(out);
  parallel_for(available_threads(), layer.out, 8, [&](int64_t begin, int64_t end) {
    for (int64_t column = begin; column < end; ++column)
      for (int64_t row = 0; row < layer.in; ++row) {
        const int64_t g = order[static_cast<size_t>(row)];
        const int distance = static_cast<int>(code(layer, row, column)) - zero_of(layer, g, column);
        values[column * layer.in + row] =
            to_f16(to_f32(scales[static_cast<size_t>(g * layer.out + column)]) * static_cast<float>(distance));
      }
  });
}

void to_blocks(const Layer& layer, std::byte* out) {
  const std::vector<f16> scales = halves_of(layer);
  auto* rows = reinterpret_cast<blocks::Int4*>(out);
  parallel_for(available_threads(), layer.out, 8, [&](int64_t begin, int64_t end) {
    for (int64_t column = begin; column < end; ++column)
      for (int64_t first = 0; first < layer.in; first += 32) {
        const int64_t g = first / layer.group();
        blocks::Int4 block{};
        block.d = scales[static_cast<size_t>(g * layer.out + column)];
        block.zero = static_cast<uint8_t>(zero_of(layer, g, column));
        for (int j = 0; j < 16; ++j)
          block.qs[j] = static_cast<uint8_t>(code(layer, first + j, column) | code(layer, first + j + 16, column) << 4);
        rows[(column * layer.in + first) / 32] = block;
      }
  });
}

// ---------------------------------------------------------------- shapes

const StoredTensor* part_of(const PackedLayers& layers, const std::string& name, const char* part, bool required) {
  const StoredTensor* found = layers.stored().find(name + "." + part);
  if (!found && required)
    fail("format", layers.path(), ": tensor ", name, ".", part, " is missing beside ", name, kEnding);
  return found;
}

bool is_matrix(const StoredTensor& stored) {
  return stored.shape.size() == 2 && stored.shape[0] > 0 && stored.shape[1] > 0;
}

// group: by the settings; 0 for whole rows.
Layer read_layer(const PackedLayers& layers, const std::string& name, bool awq, int64_t group) {
  Layer layer{"", awq};
  layer.qweight = part_of(layers, name, "qweight", true), layer.qzeros = part_of(layers, name, "qzeros", true);
  layer.scales = part_of(layers, name, "scales", true), layer.g_idx = part_of(layers, name, "g_idx", false);
  layer.where = layers.file_of(*layer.qweight) + ": layer " + name;
  const StoredTensor &qweight = *layer.qweight, &scales = *layer.scales;
  const bool floats = scales.dtype == DType::f16 || scales.dtype == DType::bf16 || scales.dtype == DType::f32;
  if (!is_matrix(qweight) || !is_matrix(scales) || qweight.dtype != DType::i32 || !floats)
    fail("shape", layer.where, ": qweight is ", described(qweight), ", scales ", described(scales),
         "; expected matrices of i32 and of f16");
  layer.groups = scales.shape[0], layer.out = scales.shape[1], layer.in = qweight.shape[0] * (awq ? 1 : kPerWord);
  const int64_t in = layer.in, out = layer.out, groups = layer.groups;
  if (out % kPerWord != 0 || in % 32 != 0 || in % groups != 0 || layer.group() % 32 != 0)
    fail("shape", layer.where, ": ", in, " inputs in ", groups, " groups and ", out,
         " outputs; expected groups of a multiple of 32 inputs, and a multiple of 8 outputs");
  check_part(layer.where, "qweight", qweight, DType::i32, {qweight.shape[0], awq ? out / kPerWord : out});
  check_part(layer.where, "qzeros", *layer.qzeros, DType::i32, {groups, out / kPerWord});
  if (layer.g_idx) check_part(layer.where, "g_idx", *layer.g_idx, DType::i32, {in});
  if (layer.group() != (group > 0 ? group : in))
    fail("format", layer.where, " has groups of ", layer.group(), " inputs, quantization_config says ", group);
  return layer;
}

int64_t group_of(const PackedLayers& layers) {
  for (const char* key : {"group_size", "q_group_size"}) {
    const nlohmann::json* value = layers.setting(key);
    if (!value) continue;
    const int64_t group = value->is_number_integer() ? value->get<int64_t>() : 0;
    if (group != -1 && (group < 32 || group % 32 != 0)) layers.refuse(key, "a multiple of 32, or -1");
    return std::max<int64_t>(group, 0);
  }
  return 128;
}

void join(PackedLayers& layers, bool awq) {
  const int64_t group = group_of(layers);
  bool decoded = false;
  for (const StoredTensor& stored : layers.stored().tensors()) {
    if (!stored.name.ends_with(kEnding)) continue;
    const std::string name = stored.name.substr(0, stored.name.size() - std::strlen(kEnding));
    const Layer layer = read_layer(layers, name, awq, group);
    const bool ordered = !order_of(layer).empty();
    std::vector<const StoredTensor*> parts = {layer.qweight, layer.qzeros, layer.scales};
    if (layer.g_idx) parts.push_back(layer.g_idx);
    layers.join(name + ".weight", {layer.out, layer.in}, std::move(parts),
                {awq ? "awq" : "gptq", ordered ? DType::f16 : DType::int4, true,
                 [layer, ordered](std::byte* out) { ordered ? to_halves(layer, out) : to_blocks(layer, out); }});
    decoded |= ordered;
  }
  if (decoded)
    layers.remark("weights of GPTQ's act-order are decoded to f16, and take four times their size in memory");
}

const Packing awq("awq", [](PackedLayers& layers) {
  for (const char* bits : {"bits", "w_bit"}) layers.allow(bits, 4);
  layers.allow("version", "gemm");
  layers.allow("zero_point", true);
  join(layers, true);
});

const Packing gptq("gptq", [](PackedLayers& layers) {
  layers.allow("bits", 4);
  layers.allow("checkpoint_format", "gptq");
  join(layers, false);
});

}  // namespace
}  // namespace qeng
