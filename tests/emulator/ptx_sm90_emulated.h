// The twins of kernels/cuda/ptx/ptx_sm90.h. hopper.cpp does the work. What the hardware leaves open is drawn by the
// seed or put off as long as may be: a tensor copy lands at once or when somebody waits for its barrier, products are
// computed when they are waited for, from the shared memory of that moment. Until then what they will write is poison.
//
// Found and reported: arrivals beyond a barrier's count, a barrier that something overwrote, boxes out of shared memory
// or misaligned, wgmma by less than a warpgroup, registers of a product that were changed while it ran, that
// wgmma_start did not name, or whose end wgmma_wait did not name, shared memory that wgmma reads after ordinary stores
// without fence_proxy_async, a negative value kept before a wait, and more registers taken than given back. Waiting in
// vain is a deadlock, as everywhere.
#pragma once
#include "tests/emulator/ptx_emulated.h"

namespace emulator {

void init_mbarrier(uint64_t* barrier, uint32_t arrivals, Site site);
void arrive_mbarrier(const char* what, uint64_t* barrier, uint32_t bytes, Site site);
void wait_mbarrier(uint64_t* barrier, uint32_t parity, Site site);
void load_box(void* shared, const qeng::TensorMap& map, int column, int head, int row, uint64_t* barrier, Site site);
void fence_proxy();
void set_registers(const char* what, int count, bool give, Site site);

struct Registers {
  void* data;
  size_t bytes;
};
struct Product {
  float* d;                 // n / 2 registers
  const uint32_t* a;        // four registers, or null:
  uint64_t a_tile, b_tile;  // descriptors
  int n;
  bool b_by_columns, accumulate, a_by_columns = false;
};
void start_products(const std::vector<Registers>& named, Site site);
void multiply_async(Product product, Site site);
void commit_products(Site site);
void wait_products(int pending, const std::vector<Registers>& named, Site site);

}  // namespace emulator

namespace qeng {
namespace ptx {

using emulator::Site;

inline void mbarrier_init(uint64_t* barrier, uint32_t arrivals, Site site = Site::current()) {
  emulator::init_mbarrier(barrier, arrivals, site);
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive(uint64_t* barrier, Site site = Site::current()) {
  emulator::arrive_mbarrier("mbarrier.arrive", barrier, 0, site);
}
inline void mbarrier_arrive_expect(uint64_t* barrier, uint32_t bytes, Site site = Site::current()) {
  emulator::arrive_mbarrier("mbarrier.arrive.expect_tx", barrier, bytes, site);
}
inline void mbarrier_wait(uint64_t* barrier, uint32_t parity, Site site = Site::current()) {
  emulator::wait_mbarrier(barrier, parity, site);
}
inline void tma_load(void* shared, const TensorMap* map, int column, int head, int row, uint64_t* barrier,
                     Site site = Site::current()) {
  emulator::load_box(shared, *map, column, head, row, barrier, site);
}
inline void fence_proxy_async() { emulator::fence_proxy(); }
template <int count>
void registers_give(Site site = Site::current()) {
  static_assert(count >= 24 && count <= 256 && count % 8 == 0);
  emulator::set_registers("setmaxnreg.dec", count, true, site);
}
template <int count>
void registers_take(Site site = Site::current()) {
  static_assert(count >= 24 && count <= 256 && count % 8 == 0);
  emulator::set_registers("setmaxnreg.inc", count, false, site);
}

inline uint64_t tile_descriptor(const void* tile, uint32_t panel_bytes = 16, Site site = Site::current()) {
  const uint64_t address = emulator::shared_address("wgmma descriptor", tile, 16, 16, site);
  return address >> 4 | uint64_t{panel_bytes >> 4} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}
inline uint64_t advance(uint64_t descriptor, uint32_t bytes) {
  return descriptor >> 32 << 32 | (static_cast<uint32_t>(descriptor) + (bytes >> 4));
}

template <class... Named>
void wgmma_start(Named&... named) {
  emulator::start_products({emulator::Registers{&named, sizeof(named)}...}, Site::current());
}
inline void wgmma_commit(Site site = Site::current()) { emulator::commit_products(site); }
template <int pending, class... Named>
void wgmma_wait(Named&... named) {
  static_assert(pending >= 0 && pending <= 7);
  emulator::wait_products(pending, {emulator::Registers{&named, sizeof(named)}...}, Site::current());
}
inline void keep_before_wait(float x, Site site = Site::current()) {
  if (x < 0)
    emulator::fail("keep_before_wait", "the value is negative: the branch, meant never to be taken, is taken", site);
}

enum class Major { k, mn };

constexpr bool is_wgmma_width(int n) {
  return n == 16 || n == 48 || n == 64 || n == 80 || n == 96 || n == 128 || n == 256;
}
template <Major b_major, Major a_major = Major::k, int count>
void wgmma(float (&d)[count], uint64_t a, uint64_t b, bool accumulate = true, Site site = Site::current()) {
  static_assert(is_wgmma_width(2 * count), "ptx_sm90.h has no product of this width");
  emulator::multiply_async({d, nullptr, a, b, 2 * count, b_major == Major::mn, accumulate, a_major == Major::mn}, site);
}
template <Major b_major, int count>
void wgmma(float (&d)[count], const uint32_t (&a)[4], uint64_t b, bool accumulate = true, Site site = Site::current()) {
  static_assert(is_wgmma_width(2 * count), "ptx_sm90.h has no product of this width");
  emulator::multiply_async({d, a, 0, b, 2 * count, b_major == Major::mn, accumulate}, site);
}

}  // namespace ptx
}  // namespace qeng
