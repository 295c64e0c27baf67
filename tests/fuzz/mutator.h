// Makes inputs from inputs: flips, numbers at their limits, blocks removed, repeated, moved or taken from another
// input, and numbers that the code compared. The same seed and corpus give the same inputs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace qeng::fuzz {

class Mutator {
 public:
  Mutator(uint64_t seed, size_t max_bytes) : state_(seed), max_bytes_(max_bytes) {}
  // One of the corpus, one to eight times changed, into `input`.
  void mutate(const std::vector<std::vector<uint8_t>>& corpus, std::vector<uint8_t>& input);

 private:
  uint64_t random();
  size_t below(size_t limit) { return limit == 0 ? 0 : static_cast<size_t>(random() % limit); }
  size_t length(size_t limit);  // 1 .. limit, small ones often
  void change(std::vector<uint8_t>& input, const std::vector<uint8_t>& other);
  void write_number(std::vector<uint8_t>& input);
  void write_compared(std::vector<uint8_t>& input);

  uint64_t state_;
  size_t max_bytes_;
};

}  // namespace qeng::fuzz
