#include "tests/emulator/races.h"

#include <algorithm>
#include <memory>
#include <sstream>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "tests/emulator/banks.h"
#include "tests/emulator/block.h"
#include "tests/emulator/places.h"
#include "tests/emulator/runtime.h"

namespace emulator {

bool check_races = false;

namespace {

// Those who touch: thread t of the block is number t + 8, the tensor cores of warpgroup g number g.
constexpr size_t kCores = 8, kActors = kCores + 1024;

// Who touched a byte and when, by the actor's own clock: block (32 bits), clock (20), actor (11), atomic (1). Blocks
// are numbered through all launches; a clock counts the actor's releases.
using Stamp = uint64_t;
constexpr uint32_t kClocks = 1u << 20;
uint32_t block_of(Stamp stamp) { return static_cast<uint32_t>(stamp >> 32); }
uint32_t clock_of(Stamp stamp) { return static_cast<uint32_t>(stamp >> 12) & (kClocks - 1); }
size_t actor_of(Stamp stamp) { return stamp >> 1 & 2047u; }
bool is_atomic(Stamp stamp) { return stamp & 1; }
size_t me() { return static_cast<size_t>(thread()) + kCores; }
size_t my_cores() { return static_cast<size_t>(thread()) / 128; }
size_t actors() { return static_cast<size_t>(threads()) + kCores; }

// The last write of a byte, and two reads: the last, and the last by another warp. (More would only be needed where
// some but not all readers are ordered before a write.) With the places of the
// first two.
struct Cell {
  Stamp write = 0, read = 0, read_elsewhere = 0;
  uint32_t write_place = 0, read_place = 0;  // see place_text
};

constexpr size_t kPage = 4096;
std::unordered_map<uintptr_t, std::unique_ptr<Cell[]>> pages;  // of device memory
std::vector<Cell> shared_cells;

uint32_t block_number = 0, launch_start = 1;
std::vector<uint32_t> clocks(kActors, 1);
std::vector<uint32_t> common(kActors);  // the last barrier of the block ordered each actor's stamps up to here
// What each actor knows beyond that: seen[a][b] is b's clock up to which a comes after it.
std::vector<std::vector<uint32_t>> seen(kActors);
bool in_atomic = false;

// Between blocks: those that released through a word, and those before this one.
std::unordered_map<const void*, std::unordered_set<uint32_t>> released;
std::unordered_set<uint32_t> acquired;
std::vector<bool> fenced(kActors);

std::vector<uint32_t>& knowledge(size_t actor) {
  auto& row = seen[actor];
  if (row.size() < actors()) row.resize(actors());
  return row;
}
void join(std::vector<uint32_t>& into, const std::vector<uint32_t>& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

bool ordered(Stamp earlier, size_t actor) {
  if (earlier == 0 || block_of(earlier) < launch_start) return true;
  if (block_of(earlier) != block_number) return acquired.count(block_of(earlier)) != 0;
  const size_t u = actor_of(earlier);
  if (u == actor || clock_of(earlier) <= common[u]) return true;
  const auto& row = seen[actor];
  return u < row.size() && clock_of(earlier) <= row[u];
}

std::string name_of(Stamp stamp) {
  const size_t actor = actor_of(stamp);
  return (actor < kCores ? "tensor cores of warpgroup " + std::to_string(actor)
                         : "thread " + thread_name(static_cast<int>(actor - kCores))) +
         (block_of(stamp) == block_number ? "" : " of another block");
}
void report(const char* address, Stamp stamp, const char* does, uint32_t place, Stamp earlier, const char* did,
            uint32_t earlier_place) {
  std::ostringstream text;
  text << "race: " << name_of(stamp) << " " << does << " (" << place_text(place) << ") ";
  if (const auto offset = static_cast<size_t>(address - shared_memory()); offset < shared_size())
    text << "byte " << offset << " of shared memory";
  else
    text << "device memory at " << static_cast<const void*>(address);
  text << ", which " << name_of(earlier) << " " << did << " (" << place_text(earlier_place)
       << "); nothing orders the two";
  report_failure(text.str());
}

// Whether the byte is touched without a race.
bool touch_cell(Cell& cell, Stamp stamp, uint32_t place, Touch kind, const char* address) {
  const size_t actor = actor_of(stamp);
  const char* does = kind == Touch::read ? "reads" : kind == Touch::write ? "writes" : "changes atomically";
  if (!(kind == Touch::atomic && is_atomic(cell.write)) && !ordered(cell.write, actor))
    return report(address, stamp, does, place, cell.write, "wrote", cell.write_place), false;
  if (kind != Touch::read) {
    for (const Stamp read : {cell.read, cell.read_elsewhere})
      if (!ordered(read, actor)) return report(address, stamp, does, place, read, "read", cell.read_place), false;
    cell.write = stamp, cell.write_place = place;
    return true;
  }
  if (actor_of(cell.read) / 32 != actor / 32) cell.read_elsewhere = cell.read;
  cell.read = stamp, cell.read_place = place;
  return true;
}

// The allocation around an address, remembered: most accesses go to few.
struct Range {
  uintptr_t begin = 0, end = 0;
};
bool is_tracked(uintptr_t address) {
  static Range recent[4];
  static size_t next = 0;
  static uint64_t version = 0;
  if (version != allocation_version()) {
    std::fill(std::begin(recent), std::end(recent), Range{});
    version = allocation_version();
  }
  for (const Range& range : recent)
    if (address - range.begin < range.end - range.begin) return true;
  Range found;
  if (!find_allocation(address, &found.begin, &found.end)) return false;
  recent[next++ % 4] = found;
  return true;
}

void touch_as(size_t actor, const void* pointer, size_t bytes, Touch kind, uint32_t place) {
  const Stamp stamp =
      uint64_t{block_number} << 32 | uint64_t{clocks[actor]} << 12 | actor << 1 | (kind == Touch::atomic);
  const char* address = static_cast<const char*>(pointer);
  if (const size_t offset = static_cast<size_t>(address - shared_memory()); offset < shared_size()) {
    if (shared_cells.size() < shared_size()) shared_cells.resize(shared_size());
    for (size_t i = offset; i < std::min(offset + bytes, shared_size()); ++i) {
      Cell& cell = shared_cells[i];
      for (Stamp* one : {&cell.write, &cell.read, &cell.read_elsewhere})  // another block's shared memory
        if (block_of(*one) != block_number) *one = 0;
      if (!touch_cell(cell, stamp, place, kind, address + (i - offset))) return;
    }
    return;
  }
  const auto begin = reinterpret_cast<uintptr_t>(pointer);
  if (!is_tracked(begin)) return;
  if (!has_begun())
    return report_failure("race: " + name_of(stamp) + " touches device memory (" + place_text(place) +
                          ") before begin_ahead: the kernel before may be writing it");
  static uintptr_t last_page = 0;
  static Cell* last_cells = nullptr;
  for (uintptr_t at = begin; at < begin + bytes; ++at) {
    if (at / kPage != last_page || !last_cells) {
      auto& cells = pages[at / kPage];
      if (!cells) cells = std::make_unique<Cell[]>(kPage);
      last_page = at / kPage, last_cells = cells.get();
    }
    if (!touch_cell(last_cells[at % kPage], stamp, place, kind, address + (at - begin))) return;
  }
}

}  // namespace

void touch_at(const void* pointer, size_t bytes, Touch kind, const void* pc, bool aligned) {
  if (in_atomic || !in_kernel() || on_stack(pointer)) return;
  if (count_banks && kind != Touch::atomic) note_access(pointer, bytes, kind == Touch::write, pc);
  if (!check_races) return;
  const uint32_t place = place_of(pc);
  if (aligned && reinterpret_cast<uintptr_t>(pointer) % bytes != 0)
    report_failure("an access of " + std::to_string(bytes) + " bytes is not aligned to them (" + place_text(place) +
                   ")");
  touch_as(me(), pointer, bytes, kind, place);
}
void touch(const void* pointer, size_t bytes, Touch kind, std::source_location site) {
  if (check_races) touch_as(me(), pointer, bytes, kind, place_of(site));
}

void start_cores() {
  if (!check_races) return;
  // What every thread of the warpgroup knows; of its own, what it did so far.
  const size_t first = my_cores() * 128 + kCores;
  std::vector<uint32_t> all = knowledge(first);
  all[first] = clocks[first];
  for (size_t t = first + 1; t < first + 128; ++t) {
    auto& row = knowledge(t);
    const uint32_t own = std::exchange(row[t], clocks[t]);
    for (size_t i = 0; i < all.size(); ++i) all[i] = std::min(all[i], row[i]);
    row[t] = own;
  }
  join(knowledge(my_cores()), all);
}
void touch_by_cores(const void* pointer, size_t bytes, Touch kind, std::source_location site) {
  if (check_races) touch_as(my_cores(), pointer, bytes, kind, place_of(site));
}
uint32_t mark_cores() { return check_races ? clocks[my_cores()]++ : 0; }
void wait_for_cores(uint32_t mark) {
  if (!check_races) return;
  uint32_t& known = knowledge(me())[my_cores()];
  known = std::max(known, mark);
}

void release(Order& order) {
  if (!check_races) return;
  if (order.block != block_number) order.clocks.clear(), order.block = block_number;
  join(order.clocks, knowledge(me()));
  order.clocks[me()] = std::max(order.clocks[me()], clocks[me()]);
  ++clocks[me()];
}
void acquire(const Order& order) {
  if (check_races && order.block == block_number) join(knowledge(me()), order.clocks);
}

void order_warp(uint32_t mask) {
  if (!check_races) return;
  const size_t first = static_cast<size_t>(thread()) / 32 * 32 + kCores;
  std::vector<uint32_t> all;
  for (size_t lane = 0; lane < 32; ++lane) {
    if (!(mask >> lane & 1)) continue;
    join(all, knowledge(first + lane));
    all[first + lane] = std::max(all[first + lane], clocks[first + lane]++);
  }
  for (size_t lane = 0; lane < 32; ++lane)
    if (mask >> lane & 1) join(knowledge(first + lane), all);
}
void order_block() {
  if (!check_races) return;
  for (size_t t = kCores; t < actors(); ++t) {
    common[t] = clocks[t]++;
    for (size_t cores = 0; cores < kCores && cores < seen[t].size(); ++cores)
      common[cores] = std::max(common[cores], seen[t][cores]);
  }
}
void order_fence() {
  if (check_races) fenced[me()] = true;
}

void begin_block(bool of_new_launch) {
  if (!check_races) return;
  ++block_number;
  if (of_new_launch) launch_start = block_number, released.clear();
  acquired.clear();
  std::fill(fenced.begin(), fenced.end(), false);
  // Clocks go on from block to block, so that what is known of old ones needs no clearing, until they near their end.
  if (*std::max_element(clocks.begin(), clocks.end()) < kClocks / 2) return;
  std::fill(clocks.begin(), clocks.end(), 1), std::fill(common.begin(), common.end(), 0);
  for (auto& row : seen) row.clear();
}

Atomic::Atomic(const void* pointer, size_t bytes) {
  if (!check_races && !count_banks) return;
  touch_at(pointer, bytes, Touch::atomic, __builtin_return_address(0));
  if (fenced[me()]) {
    auto& before = released[pointer];
    acquired.insert(before.begin(), before.end());
    before.insert(block_number);
  }
  in_atomic = true;
}
Atomic::~Atomic() { in_atomic = false; }

}  // namespace emulator
