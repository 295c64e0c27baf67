// mbarriers, tensor copies and warpgroup products of ptx_sm90_emulated.h.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>

#include "kernels/cuda/ptx/ptx_sm90.h"

namespace emulator {
namespace {

using qeng::TensorMap;

constexpr uint32_t kSwizzlePeriod = 1024;
// The 128-byte swizzle: which 16-byte chunk of its 128-byte row an address falls into depends on the row.
uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

// What the asynchronous proxy (TMA, wgmma) sees of shared memory: ordinary stores reach it with a fence only.
struct AsyncView {
  std::vector<char> bytes = std::vector<char>(shared_size(), static_cast<char>(0xff));
};
void write_async(uint32_t address, const void* data, size_t size, Site site) {
  char* target = shared_pointer("tensor copy", address, size, 16, site);
  std::memcpy(target, data, size);
  std::memcpy(per_block<AsyncView>().bytes.data() + (target - shared_memory()), data, size);
}
void read_async(uint32_t address, void* data, size_t size, bool starts, Site site) {
  const char* source = shared_pointer("wgmma", address, size, 16, site);
  if (starts) touch_by_cores(source, size, Touch::read, site);
  if (std::memcmp(source, per_block<AsyncView>().bytes.data() + (source - shared_memory()), size) != 0)
    fail("wgmma",
         "reads byte " + std::to_string(source - shared_memory()) +
             " of shared memory, which an ordinary store changed with no fence_proxy_async since",
         site);
  std::memcpy(data, source, size);
}

// ---------------------------------------------------------------- mbarriers and tensor copies

struct Box {
  uint32_t address;
  TensorMap map;
  int column, head, row;
  Site site;
  size_t bytes() const { return static_cast<size_t>(map.box_columns * map.box_heads * map.box_rows) * 2; }
};
void land(const Box& box) {
  const TensorMap& map = box.map;
  const int64_t chunk = 8;  // elements of 16 bytes
  for (int64_t r = 0; r < map.box_rows * map.box_heads; ++r)
    for (int64_t c = 0; c < map.box_columns; c += chunk) {
      uint16_t data[chunk] = {};
      for (int64_t i = 0; i < chunk; ++i) {
        const int64_t column = box.column + c + i, row = box.row + r / map.box_heads,
                      head = box.head + r % map.box_heads;
        if (column < 0 || column >= map.columns || row < 0 || row >= map.tokens || head < 0 || head >= map.heads)
          continue;
        std::memcpy(&data[i], map.data + row * map.row_stride + head * map.head_stride + column * 2, 2);
      }
      write_async(swizzled(box.address + static_cast<uint32_t>(r * map.box_columns * 2 + c * 2)), data, sizeof(data),
                  box.site);
    }
}

constexpr uint64_t kMark = 0x6d62617272696572;  // what lies where an mbarrier is, changed only by an outsider
struct Mbarrier {
  uint32_t arrivals = 0, pending = 0, parity = 0;
  int64_t bytes = 0;
  std::vector<Box> boxes;  // still to land
  Order order;
};
using Mbarriers = std::map<uint64_t*, Mbarrier>;

Mbarrier& mbarrier_at(const char* what, uint64_t* barrier, Site site) {
  shared_address(what, barrier, 8, 8, site);
  auto& all = per_block<Mbarriers>();
  const auto found = all.find(barrier);
  if (found == all.end()) fail(what, "no mbarrier was initialised here", site);
  if (*barrier != kMark) fail(what, "something wrote over the mbarrier", site);
  return found->second;
}
void end_phase(Mbarrier& barrier) {
  if (barrier.pending || barrier.bytes) return;
  barrier.pending = barrier.arrivals, barrier.parity ^= 1;
}
void take_bytes(Mbarrier& barrier, size_t bytes) {
  barrier.bytes -= static_cast<int64_t>(bytes);
  end_phase(barrier);
}

}  // namespace

void init_mbarrier(uint64_t* barrier, uint32_t arrivals, Site site) {
  shared_address("mbarrier.init", barrier, 8, 8, site);
  if (arrivals == 0 || arrivals >= 1u << 20) fail("mbarrier.init", "expects 1 to 2^20 - 1 arrivals", site);
  auto& all = per_block<Mbarriers>();
  if (all.count(barrier)) fail("mbarrier.init", "the mbarrier is initialised already", site);
  *barrier = kMark;
  Mbarrier fresh;
  fresh.arrivals = fresh.pending = arrivals;
  all.emplace(barrier, fresh);
}

void arrive_mbarrier(const char* what, uint64_t* barrier, uint32_t bytes, Site site) {
  Mbarrier& state = mbarrier_at(what, barrier, site);
  release(state.order);
  state.bytes += bytes;
  if (state.bytes >= 1 << 20) fail(what, "a phase may expect at most 2^20 - 1 bytes", site);
  if (state.pending == 0) fail(what, "all arrivals of this phase were made already", site);
  --state.pending;
  end_phase(state);
}

void wait_mbarrier(uint64_t* barrier, uint32_t parity, Site site) {
  Mbarrier& state = mbarrier_at("mbarrier.try_wait", barrier, site);
  if (parity > 1) fail("mbarrier.try_wait", "the parity is 0 or 1, not " + std::to_string(parity), site);
  wait_until(
      "mbarrier.try_wait",
      [&state, parity] {
        // The latest moment for the copies: nothing else is missing.
        if (state.parity == parity && state.pending == 0)
          for (const std::vector<Box> boxes = std::exchange(state.boxes, {}); const Box& box : boxes) {
            land(box);
            take_bytes(state, box.bytes());
          }
        return state.parity != parity;
      },
      site);
  acquire(state.order);
}

void load_box(void* shared, const TensorMap& map, int column, int head, int row, uint64_t* barrier, Site site) {
  constexpr const char* kWhat = "cp.async.bulk.tensor";
  const Box box{shared_address(kWhat, shared, static_cast<size_t>(map.box_columns * map.box_heads * map.box_rows) * 2,
                               kSwizzlePeriod, site),
                map,
                column,
                head,
                row,
                site};
  Mbarrier& state = mbarrier_at(kWhat, barrier, site);
  touch(shared, box.bytes(), Touch::write, site);
  release(state.order);
  if (arrives_early()) {
    land(box);
    return take_bytes(state, box.bytes());
  }
  const std::vector<char> poison(box.bytes(), static_cast<char>(0xff));
  write_async(box.address, poison.data(), poison.size(), site);
  state.boxes.push_back(box);
}

void fence_proxy() { std::memcpy(per_block<AsyncView>().bytes.data(), shared_memory(), shared_size()); }

// ---------------------------------------------------------------- products of a warpgroup

namespace {

constexpr int kThreads = 128, kRows = 64, kDepth = 16;
constexpr uint32_t kPoison = 0x7fc1beef;  // not a number that arithmetic makes

// Sums under way: in the threads' registers lies poison meanwhile.
struct Sums {
  std::array<float*, kThreads> d;
  int n;
  int running;                // products
  std::vector<float> values;  // [64, n]
};
struct Running {
  std::array<Product, kThreads> operands;
  std::array<std::array<uint32_t, 4>, kThreads> a;  // the registers when the product started
  Site site;
};
struct Warpgroup {
  std::vector<Running> open;
  std::vector<std::vector<Running>> batches;
  std::vector<uint32_t> marks;  // of the batches, for the race check
  std::vector<Sums> sums;
};
Warpgroup& my_group() { return per_block<std::map<int, Warpgroup>>()[thread() / kThreads]; }

struct Named {
  std::vector<Registers> of;
  bool has(const void* data, size_t bytes) const {
    return std::any_of(of.begin(), of.end(), [&](const Registers& r) {
      const auto* begin = static_cast<const char*>(r.data);
      return data >= begin && static_cast<const char*>(data) + bytes <= begin + r.bytes;
    });
  }
};

int row_of(int t, int i) { return t / 32 * 16 + t % 32 / 4 + 8 * (i / 2 % 2); }
int column_of(int t, int i) { return 8 * (i / 4) + t % 4 * 2 + i % 2; }

struct Descriptor {
  uint32_t address, leading, stride;
  Descriptor(uint64_t bits, Site site)
      : address(static_cast<uint32_t>(bits & 0x3fff) << 4),
        leading(static_cast<uint32_t>(bits >> 16 & 0x3fff) << 4),
        stride(static_cast<uint32_t>(bits >> 32 & 0x3fff) << 4) {
    if (bits >> 62 != 1 || (bits >> 49 & 7) != 0)
      fail("wgmma", "the descriptor's swizzle is not that of 128 bytes, or its base offset is not 0", site);
  }
};
float bf16_value(uint16_t bits) { return qeng::to_f32(qeng::bf16{bits}); }

// out[r][k]: `rows` rows of 16 columns, stored row by row.
void read_by_rows(const Descriptor& tile, int rows, float* out, bool starts, Site site) {
  for (int r = 0; r < rows; ++r)
    for (int chunk = 0; chunk < kDepth / 8; ++chunk) {
      uint16_t data[8];
      const auto row = static_cast<uint32_t>(r);
      read_async(swizzled(tile.address + row / 8 * tile.stride + row % 8 * 128 + static_cast<uint32_t>(chunk) * 16),
                 data, sizeof(data), starts, site);
      for (int i = 0; i < 8; ++i) out[r * kDepth + chunk * 8 + i] = bf16_value(data[i]);
    }
}
// out[k][n]: 16 rows of `columns` columns, stored row by row.
void read_by_columns(const Descriptor& tile, int columns, float* out, bool starts, Site site) {
  for (uint32_t k = 0; k < kDepth; ++k)
    for (int n = 0; n < columns; n += 8) {
      uint16_t data[8];
      const auto column = static_cast<uint32_t>(n);
      read_async(
          swizzled(tile.address + column / 64 * tile.leading + column % 64 * 2 + k / 8 * tile.stride + k % 8 * 128),
          data, sizeof(data), starts, site);
      for (int i = 0; i < 8; ++i) out[static_cast<int>(k) * columns + n + i] = bf16_value(data[i]);
    }
}

// a: [64, 16]  b: [16, n], as they are when the product starts, or when it is waited for.
void read_operands(const Running& product, float* a, float* b, bool starts) {
  const Product& first = product.operands[0];
  const int n = first.n;
  if (first.a_by_columns) {
    float columns[kDepth * kRows];
    read_by_columns(Descriptor(first.a_tile, product.site), kRows, columns, starts, product.site);
    for (int r = 0; r < kRows; ++r)
      for (int k = 0; k < kDepth; ++k) a[r * kDepth + k] = columns[k * kRows + r];
  } else if (!first.a) {
    read_by_rows(Descriptor(first.a_tile, product.site), kRows, a, starts, product.site);
  } else {
    for (int t = 0; t < kThreads; ++t)
      for (int i = 0; i < 4; ++i) {
        const uint32_t pair = product.operands[static_cast<size_t>(t)].a[i];
        if (pair != product.a[static_cast<size_t>(t)][static_cast<size_t>(i)])
          fail("wgmma", "a register of A was changed before wgmma_wait", product.site);
        float* const place = a + (t / 32 * 16 + t % 32 / 4 + 8 * (i % 2)) * kDepth + t % 4 * 2 + i / 2 * 8;
        place[0] = bf16_value(static_cast<uint16_t>(pair)), place[1] = bf16_value(static_cast<uint16_t>(pair >> 16));
      }
  }
  const Descriptor b_tile(first.b_tile, product.site);
  if (first.b_by_columns) {
    read_by_columns(b_tile, n, b, starts, product.site);
  } else {
    std::vector<float> rows(static_cast<size_t>(kDepth * n));
    read_by_rows(b_tile, n, rows.data(), starts, product.site);
    for (int j = 0; j < n; ++j)
      for (int k = 0; k < kDepth; ++k) b[k * n + j] = rows[static_cast<size_t>(j * kDepth + k)];
  }
}

void compute(const Running& product, Sums& sums) {
  const Product& first = product.operands[0];
  const int n = first.n;
  float a[kRows * kDepth];
  std::vector<float> b(static_cast<size_t>(kDepth * n));
  read_operands(product, a, b.data(), false);
  if (!first.accumulate) std::fill(sums.values.begin(), sums.values.end(), 0.0f);
  for (int r = 0; r < kRows; ++r) {
    float* __restrict__ row = sums.values.data() + r * n;
    for (int j = 0; device_rounding() && j < n; ++j) row[j] = tensor_sum(row[j], a + r * kDepth, b.data() + j, n);
    if (device_rounding()) continue;
    for (int k = 0; k < kDepth; ++k) {
      const float* __restrict__ column = b.data() + k * n;
      const float factor = a[r * kDepth + k];
      for (int j = 0; j < n; ++j) row[j] += factor * column[j];
    }
  }
}

void begin_sums(const std::array<Product, kThreads>& operands, Warpgroup& group, Site site) {
  const int n = operands[0].n, count = n / 2;
  for (Sums& sums : group.sums)
    if (sums.d[0] == operands[0].d) {
      if (sums.n != n) fail("wgmma", "D is under way in another shape", site);
      ++sums.running;
      return;
    }
  Sums sums{{}, n, 1, std::vector<float>(static_cast<size_t>(kRows * n))};
  for (int t = 0; t < kThreads; ++t) {
    float* const d = operands[static_cast<size_t>(t)].d;
    sums.d[static_cast<size_t>(t)] = d;
    for (int i = 0; i < count; ++i) {
      sums.values[static_cast<size_t>(row_of(t, i) * n + column_of(t, i))] = d[i];
      std::memcpy(&d[i], &kPoison, 4);
    }
  }
  group.sums.push_back(std::move(sums));
}
void end_sums(const Sums& sums, Site site) {
  for (int t = 0; t < kThreads; ++t)
    for (int i = 0; i < sums.n / 2; ++i) {
      float& d = sums.d[static_cast<size_t>(t)][i];
      if (std::memcmp(&d, &kPoison, 4) != 0)
        fail("wgmma.wait_group", "a register of D was changed before the wait", site);
      d = sums.values[static_cast<size_t>(row_of(t, i) * sums.n + column_of(t, i))];
    }
}

struct Wait {
  uint32_t mark = 0;  // of the last batch that is done
  int pending;
  const Named* named;
  Site site;
};
void finish(Wait* const* waits) {
  const Site site = waits[0]->site;
  Warpgroup& group = my_group();
  if (!group.open.empty()) fail("wgmma.wait_group", "products were started and not committed", site);
  while (group.batches.size() > static_cast<size_t>(waits[0]->pending)) {
    for (const Running& product : group.batches.front()) {
      const auto sums = std::find_if(group.sums.begin(), group.sums.end(),
                                     [&](const Sums& s) { return s.d[0] == product.operands[0].d; });
      compute(product, *sums);
      if (--sums->running) continue;
      end_sums(*sums, site);
      for (int t = 0; t < kThreads; ++t)
        if (!waits[t]->named->has(sums->d[static_cast<size_t>(t)], static_cast<size_t>(sums->n) * 2))
          fail("wgmma.wait_group", "finishes a D that it does not name", site);
      group.sums.erase(sums);
    }
    group.batches.erase(group.batches.begin());
    for (int t = 0; t < kThreads; ++t) waits[t]->mark = group.marks.front();
    group.marks.erase(group.marks.begin());
  }
  for (const Sums& sums : group.sums)
    for (int t = 0; t < kThreads; ++t)
      if (waits[t]->named->has(sums.d[static_cast<size_t>(t)], 4))
        fail("wgmma.wait_group", "names a D that is still under way", site);
}

struct NamedForStart : Named {};

}  // namespace

void start_products(const std::vector<Registers>& named, Site site) {
  int unused = 0;
  meet_warpgroup(
      "wgmma.fence", unused, [](int* const*) {}, site);
  auto& mine = per_thread<NamedForStart>().of;
  mine.insert(mine.end(), named.begin(), named.end());
}

void multiply_async(Product product, Site site) {
  const NamedForStart& named = per_thread<NamedForStart>();
  if (product.a && !named.has(product.a, 16)) fail("wgmma", "wgmma_start did not name A's registers", site);
  if (!named.has(product.d, static_cast<size_t>(product.n) * 2)) fail("wgmma", "wgmma_start did not name D", site);
  struct Slot {
    Product product;
    Site site;
  } slot{product, site};
  meet_warpgroup(
      "wgmma", slot,
      [](Slot* const* slots) {
        const Product& first = slots[0]->product;
        Running running;
        running.site = slots[0]->site;
        for (size_t t = 0; t < kThreads; ++t) {
          const Product& own = slots[t]->product;
          if (own.a_tile != first.a_tile || own.b_tile != first.b_tile || own.accumulate != first.accumulate)
            fail("wgmma", "the threads of the warpgroup disagree on the descriptors", running.site);
          running.operands[t] = own;
          if (own.a) std::copy(own.a, own.a + 4, running.a[t].begin());
        }
        Warpgroup& group = my_group();
        begin_sums(running.operands, group, running.site);
        if (check_races) {
          start_cores();
          std::vector<float> unused(static_cast<size_t>(kDepth * (kRows + first.n)));
          read_operands(running, unused.data(), unused.data() + kDepth * kRows, true);
        }
        group.open.push_back(running);
      },
      site);
}

void commit_products(Site site) {
  int unused = 0;
  meet_warpgroup(
      "wgmma.commit_group", unused,
      [](int* const*) {
        Warpgroup& group = my_group();
        group.batches.push_back(std::exchange(group.open, {}));
        group.marks.push_back(mark_cores());
      },
      site);
}

void wait_products(int pending, const std::vector<Registers>& named, Site site) {
  const Named own{named};
  Wait wait{0, pending, &own, site};
  meet_warpgroup(
      "wgmma.wait_group", wait, [](Wait* const* waits) { finish(waits); }, site);
  wait_for_cores(wait.mark);
  per_thread<NamedForStart>().of.clear();
}

// ---------------------------------------------------------------- registers

namespace {
constexpr int kRegisterFile = 65536;
struct RegisterPool {
  std::map<int, int> of;  // of a thread, by warpgroup
  int free = 0;
};
}  // namespace

void set_registers(const char* what, int count, bool give, Site site) {
  struct Slot {
    const char* what;
    int count;
    bool give;
    Site site;
  } slot{what, count, give, site};
  meet_warpgroup(
      what, slot,
      [](Slot* const* slots) {
        const Slot& s = *slots[0];
        RegisterPool& pool = per_block<RegisterPool>();
        const int at_start = std::min(kRegisterFile / threads() / 8 * 8, 255 / 8 * 8), group = thread() / kThreads;
        if (!pool.of.count(group)) pool.of[group] = at_start;
        if (s.give != (s.count <= pool.of[group]))
          fail(s.what, "the warpgroup has " + std::to_string(pool.of[group]) + " registers to a thread", s.site);
        if (!s.give) return;
        pool.free += (pool.of[group] - s.count) * kThreads;
        pool.of[group] = s.count;
      },
      site);
  if (give) return;
  // The first thread to find enough takes for its group.
  wait_until(
      what,
      [count, group = thread() / kThreads] {
        RegisterPool& pool = per_block<RegisterPool>();
        int& own = pool.of[group];
        if (own == count) return true;
        if (pool.free < (count - own) * kThreads) return false;
        pool.free -= (count - own) * kThreads, own = count;
        return true;
      },
      site);
}

}  // namespace emulator
