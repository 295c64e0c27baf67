#include <sys/mman.h>

#include <cstdlib>

#include "kernels/cpu/cpu.h"

namespace qeng {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kMapFrom = 4 * kHugePage;  // from here on rounding up to pages wastes little

size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }
}  // namespace

void* allocate_memory(size_t bytes) {
  if (bytes > SIZE_MAX - kHugePage) fail("memory", "cannot allocate ", bytes, " bytes");
  void* memory = nullptr;
  if (bytes < kMapFrom) {
    memory = std::aligned_alloc(64, round_up(bytes ? bytes : 1, 64));
  } else {
    memory = mmap(nullptr, round_up(bytes, kHugePage), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) memory = nullptr;
    if (memory)
      madvise(memory, round_up(bytes, kHugePage), MADV_HUGEPAGE);  // advice: refusal changes nothing but speed
  }
  if (!memory) fail("memory", "cannot allocate ", bytes, " bytes: out of memory");
  return memory;
}

void release_memory(void* memory, size_t bytes) {
  if (!memory) return;
  if (bytes < kMapFrom)
    std::free(memory);
  else
    munmap(memory, round_up(bytes, kHugePage));
}

void* Scratch::take(size_t bytes) {
  if (used_ == blocks_.size()) blocks_.emplace_back();
  Block& block = blocks_[used_];
  if (block.bytes < bytes) {
    if (grows_) grows_(bytes - block.bytes);
    release_memory(block.memory, block.bytes);
    block = {};
    block.memory = allocate_memory(bytes);
    block.bytes = bytes;
  }
  ++used_;
  return block.memory;
}

Scratch::~Scratch() {
  for (const Block& block : blocks_) release_memory(block.memory, block.bytes);
}

}  // namespace qeng
