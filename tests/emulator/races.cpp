#include "tests/emulator/races.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "tests/emulator/block.h"
#include "tests/emulator/runtime.h"

namespace emulator {

bool check_races = false;

namespace {

// Who touched a byte and when, by the thread's own clock: block (32 bits), clock (21), thread (10), atomic (1). Blocks
// are numbered through all launches; a clock counts the thread's releases.
using Stamp = uint64_t;
constexpr uint32_t kClocks = 1u << 21;
uint32_t block_of(Stamp stamp) { return static_cast<uint32_t>(stamp >> 32); }
uint32_t clock_of(Stamp stamp) { return static_cast<uint32_t>(stamp >> 11) & (kClocks - 1); }
size_t thread_of(Stamp stamp) { return stamp >> 1 & 1023u; }
bool is_atomic(Stamp stamp) { return stamp & 1; }

// The last write of a byte, and two reads: the last, and the last by another warp. (More would only be needed where
// some but not all readers are ordered before a write.) With the places of the first two.
struct Cell {
  Stamp write = 0, read = 0, read_elsewhere = 0;
  uint32_t write_pc = 0, read_pc = 0;
};

constexpr size_t kPage = 4096;
std::unordered_map<uintptr_t, std::unique_ptr<Cell[]>> pages;  // of device memory
std::vector<Cell> shared_cells;

uint32_t block_number = 0, launch_start = 1;
std::vector<uint32_t> clocks(1024, 1);
std::vector<uint32_t> common(1024);  // the last barrier of the block ordered each thread's stamps up to here
// What each thread knows beyond that: seen[t][u] is thread u's clock as far as t is behind it.
std::vector<std::vector<uint32_t>> seen(1024);
bool in_atomic = false;

// Between blocks: those that released through a word, and those before this one.
std::unordered_map<const void*, std::unordered_set<uint32_t>> released;
std::unordered_set<uint32_t> acquired;
std::vector<bool> fenced(1024);

std::vector<uint32_t>& knowledge(size_t t) {
  auto& row = seen[t];
  if (row.size() < static_cast<size_t>(threads())) row.resize(static_cast<size_t>(threads()));
  return row;
}
void join(std::vector<uint32_t>& into, const std::vector<uint32_t>& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

bool ordered(Stamp earlier, size_t t) {
  if (earlier == 0 || block_of(earlier) < launch_start) return true;
  if (block_of(earlier) != block_number) return acquired.count(block_of(earlier)) != 0;
  const size_t u = thread_of(earlier);
  if (u == t || clock_of(earlier) <= common[u]) return true;
  const auto& row = seen[t];
  return u < row.size() && clock_of(earlier) <= row[u];
}

// The module that the kernels are in, so that a place fits 32 bits.
const char* module_base() {
  static const char* base = [] {
    Dl_info info{};
    dladdr(reinterpret_cast<const void*>(&touch_at), &info);
    return static_cast<const char*>(info.dli_fbase);
  }();
  return base;
}
std::string place(uint32_t offset) {
  if (offset == 0) return "?";
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&touch_at), &info);
  char command[4096];
  std::snprintf(command, sizeof command, "addr2line -i -e '%s' 0x%x 2>/dev/null", info.dli_fname, offset - 1);
  std::string text;
  if (FILE* pipe = popen(command, "r")) {
    char line[1024];
    while (std::fgets(line, sizeof line, pipe)) {  // an inlined function's place, then its caller's, ...
      std::string one(line);
      one.erase(one.find_last_not_of(" \n") + 1);
      if (const size_t note = one.find(" ("); note != std::string::npos) one.erase(note);
      one.erase(0, one.rfind('/') + 1);
      if (one.rfind("??", 0) != 0) text += (text.empty() ? "" : " in ") + one;
    }
    pclose(pipe);
  }
  return text.empty() ? "?" : text;
}

void report(const char* address, const char* memory, size_t byte, const char* now, const char* before, Stamp earlier,
            uint32_t earlier_pc, uint32_t pc) {
  std::ostringstream text;
  text << "race: thread " << thread_name(thread()) << " " << now << " (" << place(pc) << ") ";
  if (memory)
    text << "byte " << byte << " of " << memory << " memory";
  else
    text << "device memory at " << static_cast<const void*>(address);
  text << ", which thread " << thread_name(static_cast<int>(thread_of(earlier)));
  if (block_of(earlier) != block_number) text << " of another block";
  text << " " << before << " (" << place(earlier_pc) << "); nothing orders the two";
  report_failure(text.str());
}

// Whether the byte is touched without a race.
bool touch_cell(Cell& cell, Stamp stamp, uint32_t pc, Touch kind, const char* address, const char* memory,
                size_t byte) {
  const size_t t = thread_of(stamp);
  const char* words[] = {"reads", "writes", "changes atomically"};
  const char* now = words[static_cast<int>(kind)];
  if (!(kind == Touch::atomic && is_atomic(cell.write)) && !ordered(cell.write, t))
    return report(address, memory, byte, now, "wrote", cell.write, cell.write_pc, pc), false;
  if (kind != Touch::read) {
    for (const Stamp read : {cell.read, cell.read_elsewhere})
      if (!ordered(read, t)) return report(address, memory, byte, now, "read", read, cell.read_pc, pc), false;
    cell.write = stamp, cell.write_pc = pc;
    return true;
  }
  if (thread_of(cell.read) / 32 != t / 32) cell.read_elsewhere = cell.read;
  cell.read = stamp, cell.read_pc = pc;
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

}  // namespace

void touch_at(const void* pointer, size_t bytes, Touch kind, const void* pc) {
  if (in_atomic || !in_kernel() || on_stack(pointer)) return;
  const auto t = static_cast<size_t>(thread());
  const Stamp stamp = uint64_t{block_number} << 32 | uint64_t{clocks[t]} << 11 | t << 1 | (kind == Touch::atomic);
  const auto pc_offset = static_cast<uint32_t>(static_cast<const char*>(pc) - module_base());
  const char* address = static_cast<const char*>(pointer);
  if (const size_t offset = static_cast<size_t>(address - shared_memory()); offset < shared_size()) {
    if (shared_cells.size() < shared_size()) shared_cells.resize(shared_size());
    for (size_t i = offset; i < std::min(offset + bytes, shared_size()); ++i) {
      Cell& cell = shared_cells[i];
      for (Stamp* one : {&cell.write, &cell.read, &cell.read_elsewhere})  // another block's shared memory
        if (block_of(*one) != block_number) *one = 0;
      if (!touch_cell(cell, stamp, pc_offset, kind, address, "shared", i)) return;
    }
    return;
  }
  const auto begin = reinterpret_cast<uintptr_t>(pointer);
  if (!is_tracked(begin)) return;
  static uintptr_t last_page = 0;
  static Cell* last_cells = nullptr;
  for (uintptr_t at = begin; at < begin + bytes; ++at) {
    if (at / kPage != last_page || !last_cells) {
      auto& cells = pages[at / kPage];
      if (!cells) cells = std::make_unique<Cell[]>(kPage);
      last_page = at / kPage, last_cells = cells.get();
    }
    if (!touch_cell(last_cells[at % kPage], stamp, pc_offset, kind, address, nullptr, 0)) return;
  }
}

__attribute__((noinline)) void touch(const void* pointer, size_t bytes, Touch kind) {
  if (check_races) touch_at(pointer, bytes, kind, __builtin_return_address(0));
}

void release(Order& order) {
  if (!check_races) return;
  if (order.block != block_number) order.clocks.clear(), order.block = block_number;
  const auto t = static_cast<size_t>(thread());
  join(order.clocks, knowledge(t));
  join(order.clocks, {common.begin(), common.begin() + threads()});
  order.clocks[t] = std::max(order.clocks[t], clocks[t]);
  ++clocks[t];
}
void acquire(const Order& order) {
  if (check_races && order.block == block_number) join(knowledge(static_cast<size_t>(thread())), order.clocks);
}

void order_warp(uint32_t mask) {
  if (!check_races) return;
  const size_t first = static_cast<size_t>(thread()) / 32 * 32;
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
  for (size_t t = 0; t < static_cast<size_t>(threads()); ++t) common[t] = clocks[t]++;
}
void order_fence() {
  if (check_races) fenced[static_cast<size_t>(thread())] = true;
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
  if (!check_races) return;
  touch_at(pointer, bytes, Touch::atomic, __builtin_return_address(0));
  if (fenced[static_cast<size_t>(thread())]) {
    auto& before = released[pointer];
    acquired.insert(before.begin(), before.end());
    before.insert(block_number);
  }
  in_atomic = true;
}
Atomic::~Atomic() { in_atomic = false; }

}  // namespace emulator
