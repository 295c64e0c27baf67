#include "tests/fuzz/mutator.h"

#include <algorithm>
#include <cstring>

#include "tests/fuzz/coverage.h"

namespace qeng::fuzz {
namespace {

using Bytes = std::vector<uint8_t>;

std::ptrdiff_t place(size_t at) { return static_cast<std::ptrdiff_t>(at); }

void put(Bytes& input, size_t at, uint64_t value, size_t bytes, bool big) {
  for (size_t i = 0; i < bytes; ++i) input[at + i] = static_cast<uint8_t>(value >> 8 * (big ? bytes - 1 - i : i));
}

bool holds(const Bytes& input, size_t at, uint64_t value, size_t bytes, bool big) {
  for (size_t i = 0; i < bytes; ++i)
    if (input[at + i] != static_cast<uint8_t>(value >> 8 * (big ? bytes - 1 - i : i))) return false;
  return true;
}

}  // namespace

uint64_t Mutator::random() {  // SplitMix64
  uint64_t x = state_ += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

size_t Mutator::length(size_t limit) {
  const size_t cap = size_t{1} << below(11);
  return 1 + below(std::min(cap, limit));
}

// A number at a limit, or near the one that stands there, of 1, 2, 4 or 8 bytes in either order.
void Mutator::write_number(Bytes& input) {
  const size_t bytes = size_t{1} << below(4);
  if (input.size() < bytes) return;
  const size_t at = below(input.size() - bytes + 1);
  const bool big = random() & 1;
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= uint64_t{input[at + i]} << 8 * (big ? bytes - 1 - i : i);
  switch (below(6)) {
    case 0: value += 1 + below(16); break;
    case 1: value -= 1 + below(16); break;
    case 2: value = uint64_t{1} << below(64); break;
    case 3: value = (uint64_t{1} << below(64)) - 1; break;
    case 4: value = ~uint64_t{0} - below(16); break;
    default: value = below(2) ? input.size() - below(std::min<size_t>(input.size(), 64)) : below(256);
  }
  put(input, at, value, bytes, big);
}

// Where the input holds one side of a comparison, it gets the other; where it holds neither, at any place.
void Mutator::write_compared(Bytes& input) {
  const Compared pair = compared()[below(compared().size())];
  const auto bytes = static_cast<size_t>(pair.bytes);
  if (bytes == 0 || input.size() < bytes) return;
  const size_t places = input.size() - bytes + 1, from = below(places);
  for (size_t i = 0; i < std::min<size_t>(places, 4096); ++i) {
    const size_t at = (from + i) % places;
    for (bool big : {false, true}) {
      if (holds(input, at, pair.left, bytes, big)) return put(input, at, pair.right, bytes, big);
      if (holds(input, at, pair.right, bytes, big)) return put(input, at, pair.left, bytes, big);
    }
  }
  put(input, from, random() & 1 ? pair.left : pair.right, bytes, random() & 1);
}

void Mutator::change(Bytes& input, const Bytes& other) {
  const size_t size = input.size(), at = below(size);
  const size_t count = size == 0 ? 0 : std::min(length(size), size - at);
  switch (size == 0 ? 7 : below(11)) {
    case 0: input[at] ^= static_cast<uint8_t>(1 << below(8)); break;
    case 1: input[at] = static_cast<uint8_t>(random()); break;
    case 2: write_number(input); break;
    case 3: write_compared(input); break;
    case 4: input.erase(input.begin() + place(at), input.begin() + place(at + count)); break;
    case 5: input.resize(at); break;
    case 6: {  // a block repeated elsewhere
      const Bytes block(input.begin() + place(at), input.begin() + place(at + count));
      input.insert(input.begin() + place(below(size + 1)), block.begin(), block.end());
      break;
    }
    case 7: {  // random bytes, or one byte over and over
      Bytes block(length(64), static_cast<uint8_t>(random()));
      if (random() & 1) std::generate(block.begin(), block.end(), [this] { return static_cast<uint8_t>(random()); });
      input.insert(input.begin() + place(below(size + 1)), block.begin(), block.end());
      break;
    }
    case 8: {  // a block over another
      const size_t to = below(size - count + 1);
      std::memmove(&input[to], &input[at], count);
      break;
    }
    default: {  // a block of another input, put in or laid over
      if (other.empty()) break;
      const size_t from = below(other.size()), taken = std::min(length(other.size()), other.size() - from);
      if (random() & 1) {
        input.insert(input.begin() + place(at), other.begin() + place(from), other.begin() + place(from + taken));
      } else {
        std::copy_n(other.begin() + place(from), std::min(taken, size - at), input.begin() + place(at));
      }
    }
  }
  if (input.size() > max_bytes_) input.resize(max_bytes_);
}

void Mutator::mutate(const std::vector<Bytes>& corpus, Bytes& input) {
  // The latest finds are tried most: they are what the run has just learned.
  const size_t recent = std::min<size_t>(corpus.size(), 32);
  const size_t which = random() & 1 ? corpus.size() - 1 - below(recent) : below(corpus.size());
  input = corpus[which];
  for (size_t changes = size_t{1} << below(4); changes > 0; --changes) change(input, corpus[below(corpus.size())]);
}

}  // namespace qeng::fuzz
