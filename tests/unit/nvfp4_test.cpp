#include "engine/formats/nvfp4.h"

#include <cmath>

#include "tests/catch.h"

using namespace qeng;

TEST_CASE("NVFP4: every scale and code decode to their product, exactly") {
  const float fp4[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (int bits = 0; bits < 128; ++bits) {
    const float e4m3 = bits == 127 ? 0
                       : bits < 8  ? std::ldexp(bits / 8.0f, -6)
                                   : std::ldexp(1 + bits % 8 / 8.0f, bits / 8 - 7);
    std::byte block[kNvfp4Bytes]{};
    block[2] = static_cast<std::byte>(bits);  // group 2: weights 32 .. 47
    for (int j = 0; j < 8; ++j) block[4 + 16 + j] = static_cast<std::byte>(j | (8 + j) << 4);
    f16 values[kNvfp4Elements];
    decode_nvfp4(block, 1, values);
    for (int j = 0; j < 8; ++j) {
      REQUIRE(to_f32(values[32 + j]) == e4m3 * fp4[j]);
      REQUIRE(to_f32(values[40 + j]) == -(e4m3 * fp4[j]));
      REQUIRE(to_f32(values[j]) == 0);
    }
  }
}
