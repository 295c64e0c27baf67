#include "engine/formats/nvfp4.h"

#include <cmath>

#include "kernels/math/blocks/tables.h"
#include "kernels/parallel.h"

namespace qeng {

namespace {

float half_of_e4m3(int bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  if (bits == 0x7f) return 0;
  return exponent ? std::ldexp(static_cast<float>(8 + fraction), exponent - 11)
                  : std::ldexp(static_cast<float>(fraction), -10);
}

}  // namespace

void decode_nvfp4(const std::byte* from, int64_t blocks, f16* out) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(from);
  parallel_for(available_threads(), blocks, 256, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      for (int k = 0; k < kNvfp4Elements; ++k) {
        const uint8_t* block = bytes + b * kNvfp4Bytes;
        const int group = k / 16, pair = block[4 + 8 * group + k % 8], q = k % 16 < 8 ? pair & 15 : pair >> 4;
        out[b * kNvfp4Elements + k] = to_f16(half_of_e4m3(block[group]) * static_cast<float>(blocks::fp4_value(q)));
      }
  });
}

}  // namespace qeng
