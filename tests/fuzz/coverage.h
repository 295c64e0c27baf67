// Which code an input reached, from the calls that g++ inserts with -fsanitize-coverage=trace-pc,trace-cmp. Without
// those flags nothing is ever new.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace qeng::fuzz {

// Whether the code that ran since the last call took a branch never seen before (or took one far more often).
bool new_coverage();
size_t covered();  // branches seen so far

// Pairs of numbers that were compared and differed, the latest of them: an input that holds the one may have to hold
// the other.
struct Compared {
  uint64_t left, right;
  int bytes;
};
std::span<const Compared> compared();

}  // namespace qeng::fuzz
