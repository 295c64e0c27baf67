#include "engine/program/rehearsal.h"

#include <sys/mman.h>

#include <cstring>

#include "engine/program/profile.h"
#include "kernels/check_shapes.h"
#include "kernels/error.h"
#include "kernels/lm_head.h"

namespace qeng {

Rehearsal::Rehearsal(const Backend& real, const Limits& limits, bool for_gpu)
    : real_(real),
      name_(real.name()),
      description_(real.description()),
      for_gpu_(for_gpu && real.host_memory()),
      limits_(limits) {}

void Rehearsal::run(const Op& op) {
  std::visit([](const auto& concrete) { check_shapes(concrete); }, op);
  if (const auto* copy = std::get_if<Copy>(&op); copy && copy->y.dtype == DType::i32 && copy->y.bytes() <= kReal)
    std::memcpy(copy->y.data, copy->x.data, copy->y.bytes());  // an index list on its way to where it is read
  const Cost needed = cost(op, *this);
  work_.seconds += ideal_seconds(op, needed, limits_);
  (uses_bf16(op) ? work_.flops_bf16 : work_.flops_f32) += needed.flops;
  work_.bytes += needed.bytes;
}

int Rehearsal::head_chunk(int64_t tokens, int64_t vocab) const {
  return for_gpu_ ? gpu_head_chunk(tokens, vocab, SIZE_MAX) : real_.head_chunk(tokens, vocab);
}

void* Rehearsal::allocate(size_t bytes) {
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED)
    fail("memory", "rehearsal: no address space for ", bytes, " bytes; look at ulimit -v and vm.overcommit_memory");
  return pages;
}

void Rehearsal::release(void* memory, size_t bytes) { munmap(memory, bytes); }

void Rehearsal::upload(void* device, const void* host, size_t bytes) {
  if (bytes <= kReal) std::memcpy(device, host, bytes);
}

void Rehearsal::download(void* host, const void* device, size_t bytes) { std::memcpy(host, device, bytes); }

}  // namespace qeng
