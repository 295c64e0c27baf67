#include "tests/fuzz/coverage.h"

#include <array>
#include <bit>

namespace qeng::fuzz {
namespace {

constexpr size_t kPlaces = 1 << 16;  // about ten times the branches of the engine
constexpr size_t kPairs = 64;

std::array<uint8_t, kPlaces> hits;  // of this input
std::array<uint8_t, kPlaces> seen;  // over all inputs: a bit for each power of two of hits
thread_local uintptr_t before = 0;
size_t places = 0;
std::array<Compared, kPairs> pairs;  // no vector: the first comparisons come before main()
size_t pair_count = 0;

void note(uint64_t left, uint64_t right, int bytes) {
  if (left != right && (left > 255 || right > 255)) pairs[pair_count++ % kPairs] = {left, right, bytes};
}

}  // namespace

bool new_coverage() {
  bool fresh = false;
  for (size_t i = 0; i < kPlaces; ++i) {
    if (hits[i] == 0) continue;
    const auto bit = static_cast<uint8_t>(1 << (std::bit_width(unsigned{hits[i]}) - 1));
    if (!(seen[i] & bit)) fresh = true, places += seen[i] == 0, seen[i] = static_cast<uint8_t>(seen[i] | bit);
    hits[i] = 0;
  }
  return fresh;
}

size_t covered() { return places; }
std::span<const Compared> compared() { return pairs; }

}  // namespace qeng::fuzz

// Edges rather than places: where the branch came from is mixed in, as AFL does.
extern "C" void __sanitizer_cov_trace_pc() {
  using namespace qeng::fuzz;
  const auto here = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  const uintptr_t mixed = here * 0x9E3779B97F4A7C15 >> 48;
  uint8_t& count = hits[(mixed ^ before) % kPlaces];
  if (count < 255) ++count;
  before = mixed >> 1;
}
extern "C" void __sanitizer_cov_trace_cmp1(uint8_t, uint8_t) {}
extern "C" void __sanitizer_cov_trace_cmp2(uint16_t a, uint16_t b) { qeng::fuzz::note(a, b, 2); }
extern "C" void __sanitizer_cov_trace_cmp4(uint32_t a, uint32_t b) { qeng::fuzz::note(a, b, 4); }
extern "C" void __sanitizer_cov_trace_cmp8(uint64_t a, uint64_t b) { qeng::fuzz::note(a, b, 8); }
extern "C" void __sanitizer_cov_trace_const_cmp1(uint8_t, uint8_t) {}
extern "C" void __sanitizer_cov_trace_const_cmp2(uint16_t a, uint16_t b) { qeng::fuzz::note(a, b, 2); }
extern "C" void __sanitizer_cov_trace_const_cmp4(uint32_t a, uint32_t b) { qeng::fuzz::note(a, b, 4); }
extern "C" void __sanitizer_cov_trace_const_cmp8(uint64_t a, uint64_t b) { qeng::fuzz::note(a, b, 8); }
extern "C" void __sanitizer_cov_trace_switch(uint64_t, uint64_t*) {}
extern "C" void __sanitizer_cov_trace_cmpf(float, float) {}
extern "C" void __sanitizer_cov_trace_cmpd(double, double) {}
