// The warp's matrix instructions, with the layouts that kernels/cuda/ptx/ptx.h writes down. Never sanitized and always
// optimized: emulated kernels spend most of their time here.
#include <bit>
#include <cmath>

#include "tests/emulator/ptx_emulated.h"

namespace emulator {

namespace {
template <bool half>
float low(uint32_t pair) {
  return half ? qeng::to_f32(qeng::f16{static_cast<uint16_t>(pair)}) : std::bit_cast<float>(pair << 16);
}
template <bool half>
float high(uint32_t pair) {
  return low<half>(pair >> 16);
}
using Row = float __attribute__((vector_size(32)));  // 8 columns; left to itself, g++ makes vectors of k
template <bool half>
void unpack(const MatrixMultiply* const* slots, float (&a)[16][16], Row (&b)[16], Row (&c)[16]) {
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    const MatrixMultiply& from = *slots[lane];
    for (int upper = 0; upper < 2; ++upper) {  // k 8 upper ...
      const uint32_t b_pair = upper ? from.b1 : from.b0;
      b[8 * upper + 2 * t][g] = low<half>(b_pair), b[8 * upper + 2 * t + 1][g] = high<half>(b_pair);
      for (int lower = 0; lower < 2; ++lower) {  // rows 8 lower ...
        const uint32_t a_pair = from.a[2 * upper + lower];
        float* const to = &a[8 * lower + g][8 * upper + 2 * t];
        to[0] = low<half>(a_pair), to[1] = high<half>(a_pair);
      }
    }
    for (int i = 0; i < 4; ++i) c[8 * (i / 2) + g][2 * t + i % 2] = from.c[i];
  }
}
uint32_t element(const char* row, int column) {
  uint16_t value;
  std::memcpy(&value, row + 2 * column, 2);
  return value;
}
void load(MatrixLoad* const* slots, bool transposed) {
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int j = 0; j < 4; ++j) {
      MatrixLoad* const* rows = slots + 8 * j;
      slots[lane]->registers[j] = transposed ? element(rows[2 * t]->row, g) | element(rows[2 * t + 1]->row, g) << 16
                                             : element(rows[g]->row, 2 * t) | element(rows[g]->row, 2 * t + 1) << 16;
    }
  }
}
}  // namespace

namespace {

// A matrix is read at once: of its eight rows of 16 bytes no two may lie in the same four banks, or the instruction takes
// as many turns.
void check_banks(MatrixLoad* const* slots) {
  for (int lane = 0; lane < 32; ++lane)
    for (int other = lane / 8 * 8; other < lane; ++other) {
      const ptrdiff_t apart = slots[lane]->row - slots[other]->row;
      if (apart == 0 || apart % 128 != 0) continue;
      const Site& site = slots[lane]->site;
      const std::string file = site.file_name();
      return report_failure("ldmatrix: rows of lanes " + std::to_string(other) + " and " + std::to_string(lane) +
                            " lie in the same banks (" + file.substr(file.rfind('/') + 1) + ":" +
                            std::to_string(site.line()) + ")");
    }
}

}  // namespace

void load_matrices(const char* what, MatrixLoad& slot, bool transposed, Site site) {
  shared_address(what, slot.row, 16, 16, site);
  touch(slot.row, 16, Touch::read, site);
  if (transposed)
    meet_warp(
        what, ~0u, slot, [](MatrixLoad* const* slots) { check_banks(slots), load(slots, true); }, site);
  else
    meet_warp(
        what, ~0u, slot, [](MatrixLoad* const* slots) { check_banks(slots), load(slots, false); }, site);
}

void multiply_matrices(MatrixMultiply& slot, Site site) {
  meet_warp(
      "mma", ~0u, slot,
      [](MatrixMultiply* const* slots) {
        float a[16][16];   // [row][k]
        Row b[16], c[16];  // [k][column], [row][column]
        slots[0]->half ? unpack<true>(slots, a, b, c) : unpack<false>(slots, a, b, c);
        for (int row = 0; row < 16; ++row) {
          if (device_rounding())
            for (int column = 0; column < 8; ++column)
              c[row][column] = tensor_sum(c[row][column], a[row], reinterpret_cast<const float*>(b) + column, 8);
          else
            for (int k = 0; k < 16; ++k) c[row] += a[row][k] * b[k];
        }
        for (int lane = 0; lane < 32; ++lane) {
          const int g = lane / 4, t = lane % 4;
          for (int i = 0; i < 4; ++i) slots[lane]->c[i] = c[8 * (i / 2) + g][2 * t + i % 2];
        }
      },
      site);
}

void multiply_floats(FloatMultiply& slot, Site site) {
  for (int i = 0; i < 6; ++i) {
    const float each = i < 4 ? slot.a[i] : slot.b[i - 4];
    if (std::isfinite(each) && std::bit_cast<uint32_t>(each) & 0x1fffu)
      fail("mma.tf32", "an operand, " + std::to_string(each) + ", has more bits than TF32, which cuts them off", site);
  }
  meet_warp(
      "mma.tf32", ~0u, slot,
      [](FloatMultiply* const* slots) {
        float a[16][16] = {}, b[16][8] = {};  // of k 8 .. 15 there is nothing
        for (int lane = 0; lane < 32; ++lane)
          for (int upper = 0; upper < 2; ++upper) {
            const int g = lane / 4, k = lane % 4 + 4 * upper;
            a[g][k] = slots[lane]->a[2 * upper], a[g + 8][k] = slots[lane]->a[2 * upper + 1];
            b[k][g] = slots[lane]->b[upper];
          }
        for (int lane = 0; lane < 32; ++lane)
          for (int i = 0; i < 4; ++i) {
            const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            float& c = slots[lane]->c[i];
            if (device_rounding())
              c = tensor_sum(c, a[row], &b[0][column], 8);
            else
              for (int k = 0; k < 8; ++k) c += a[row][k] * b[k][column];
          }
      },
      site);
}

}  // namespace emulator
