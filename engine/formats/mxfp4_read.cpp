// Experts that are stored in MXFP4 (gpt-oss), as mxfp4 blocks (kernels/math/blocks/tables.h) of the same numbers:
//   NAME_blocks: [experts, rows, blocks, 16] u8, byte j of a block holds its weights 2 j and 2 j + 1, the first low
//   NAME_scales: [experts, rows, blocks] u8, the exponent of two plus 127
// They are listed as NAME, [experts, rows, 32 blocks]; of gate_up_proj the even rows as gate_proj, the odd as up_proj.
// (OCP Microscaling Formats 1.0; the layout is that of openai/gpt-oss-20b.)
#include "engine/formats/packed_layers.h"
#include "kernels/error.h"
#include "kernels/math/blocks/tables.h"
#include "kernels/parallel.h"

namespace qeng {
namespace {

constexpr const char *kBlocks = "_blocks", *kScales = "_scales", *kBoth = "gate_up_proj";
constexpr int64_t kBytes = 16, kElements = 32;

// Rows first, first + step .. of each expert, `rows` in all.
void decode(const StoredTensor& codes, const StoredTensor& scales, int64_t first, int64_t step, std::byte* out) {
  const int64_t per_row = codes.shape[2], rows = codes.shape[0] * codes.shape[1] / step;
  const auto* code = reinterpret_cast<const uint8_t*>(codes.data);
  const auto* exponent = reinterpret_cast<const uint8_t*>(scales.data);
  auto* blocks = reinterpret_cast<blocks::MXFP4*>(out);
  parallel_for(available_threads(), rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * per_row; i < end * per_row; ++i) {
      const int64_t from = (i / per_row * step + first) * per_row + i % per_row;
      const uint8_t* pairs = code + from * kBytes;
      blocks[i].e = exponent[from];
      const auto weight = [&](int k) { return pairs[k / 2] >> (k % 2 * 4) & 15; };
      for (int j = 0; j < kBytes; ++j) blocks[i].qs[j] = static_cast<uint8_t>(weight(j) | weight(j + 16) << 4);
    }
  });
}

void join(PackedLayers& layers) {
  for (const StoredTensor& codes : layers.stored().tensors()) {
    if (!codes.name.ends_with(kBlocks)) continue;
    const std::string name = codes.name.substr(0, codes.name.size() - std::string_view(kBlocks).size());
    const std::string where = layers.file_of(codes) + ": experts " + name;
    const StoredTensor* scales = layers.stored().find(name + kScales);
    if (!scales) fail("format", layers.path(), ": tensor ", name, kScales, " is missing beside ", codes.name);
    const std::vector<int64_t>& shape = codes.shape;
    const int64_t ways = name.ends_with(kBoth) ? 2 : 1;
    if (codes.dtype != DType::u8 || shape.size() != 4 || shape[3] != kBytes || shape[1] % ways != 0)
      fail("shape", where, ": blocks are ", described(codes), ", expected u8 [experts, ",
           ways == 2 ? "an even number of " : "", "rows, blocks, 16]");
    check_part(where, "scales", *scales, DType::u8, {shape[0], shape[1], shape[2]});
    for (int64_t way = 0; way < ways; ++way) {
      const std::string stem = name.substr(0, name.size() - std::string_view(kBoth).size());
      layers.join(ways == 1 ? name : stem + (way == 0 ? "gate_proj" : "up_proj"),
                  {shape[0], shape[1] / ways, shape[2] * kElements}, {&codes, scales},
                  {"mxfp4", DType::mxfp4, true,
                   [&codes, scales, way, ways](std::byte* out) { decode(codes, *scales, way, ways, out); }},
                  ways);
    }
  }
}

const Packing mxfp4("mxfp4", join);

}  // namespace
}  // namespace qeng
