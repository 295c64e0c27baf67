#include "tests/emulator/banks.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>

#include "tests/emulator/block.h"
#include "tests/emulator/places.h"

namespace emulator {

bool banks_wanted() { return std::getenv("QENG_EMULATOR_BANKS") != nullptr; }
bool count_banks = banks_wanted();

namespace {

constexpr size_t kLanes = 32, kBanks = 32, kWord = 4, kWidest = 16;

struct Access {
  uint32_t place, epoch, offset, bytes;
  bool writes;
};
using Lanes = std::array<const Access*, kLanes>;  // null: the lane takes no part
std::array<std::vector<Access>, 1024> noted;      // of each thread, since its warp last met
std::array<uint32_t, 1024> epochs{};

using Places = std::unordered_map<uint32_t, BankCount>;  // by place
std::map<const void*, Places> kernels;
Places* running = nullptr;  // of the kernel that runs

// One part of an access: the words that its lanes want.
void count_part(std::array<uint32_t, 2 * kLanes>& words, size_t size, BankCount& count) {
  if (size == 0) return;
  std::sort(words.begin(), words.begin() + size);
  size = static_cast<size_t>(std::unique(words.begin(), words.begin() + size) - words.begin());
  std::array<uint32_t, kBanks> taken{};
  for (size_t i = 0; i < size; ++i) ++taken[words[i] % kBanks];
  count.turns += *std::max_element(taken.begin(), taken.end());
  count.least += (size + kBanks - 1) / kBanks;
}

void count_access(const Lanes& lanes) {
  const Access& first = **std::find_if(lanes.begin(), lanes.end(), [](const Access* one) { return one != nullptr; });
  BankCount& count = (*running)[first.place];
  // Copies of larger objects go by the widest access that all their addresses allow.
  uint32_t width = first.bytes;
  if (width > kWidest || (width & (width - 1)) != 0) {
    uint32_t bits = first.bytes | kWidest;
    for (const Access* one : lanes)
      if (one) bits |= one->offset;
    width = bits & -bits;
  }
  count.place = first.place, count.bytes = width, count.writes = first.writes;
  const size_t part = std::min(kLanes, kBanks * kWord / width);
  for (uint32_t at = 0; at < first.bytes; at += width) {
    ++count.accesses;
    for (size_t lane = 0; lane < kLanes; lane += part) {
      std::array<uint32_t, 2 * kLanes> words;
      size_t size = 0;
      for (size_t i = lane; i < lane + part; ++i) {
        if (!lanes[i]) continue;
        const uint32_t begin = lanes[i]->offset + at, last = (begin + width - 1) / kWord;
        for (uint32_t word = begin / kWord; word <= last && size < words.size(); ++word) words[size++] = word;
      }
      count_part(words, size, count);
    }
  }
}

bool alike(const Access& a, const Access& b) { return a.place == b.place && a.epoch == b.epoch && a.bytes == b.bytes; }

// Lanes that took the same way have the same accesses in the same order. Others are matched by place and number.
void count_warp(size_t warp) {
  const auto* const of_lane = &noted[kLanes * warp];
  const auto* longest = of_lane;
  for (size_t lane = 1; lane < kLanes; ++lane)
    if (of_lane[lane].size() > longest->size()) longest = of_lane + lane;
  const size_t length = longest->size();
  if (length == 0) return;
  bool one_way = true;
  for (size_t lane = 0; lane < kLanes && one_way; ++lane)
    one_way = of_lane[lane].empty() || (of_lane[lane].size() == length &&
                                        std::equal(longest->begin(), longest->end(), of_lane[lane].begin(), alike));
  if (one_way) {
    for (size_t i = 0; i < length; ++i) {
      Lanes lanes{};
      for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = of_lane[lane].empty() ? nullptr : &of_lane[lane][i];
      count_access(lanes);
    }
  } else {
    using Key = std::tuple<uint32_t, uint32_t, uint32_t>;
    std::map<std::pair<Key, uint32_t>, Lanes> accesses;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      std::map<Key, uint32_t> number;
      for (const Access& one : of_lane[lane]) {
        const Key key{one.place, one.epoch, one.bytes};
        accesses[{key, number[key]++}][lane] = &one;
      }
    }
    for (const auto& [key, lanes] : accesses) count_access(lanes);
  }
  for (size_t t = kLanes * warp; t < kLanes * (warp + 1); ++t) noted[t].clear();
}

void note(const void* pointer, size_t bytes, bool writes, uint32_t place) {
  const auto offset = static_cast<size_t>(static_cast<const char*>(pointer) - shared_memory());
  if (offset >= shared_size()) return;
  const auto t = static_cast<size_t>(thread());
  noted[t].push_back({place, epochs[t], static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes), writes});
}

// A line for each kernel and place: module, the kernel's address in it, place, r or w, bytes, accesses, turns, least.
struct Writer {
  ~Writer() {
    const char* const path = std::getenv("QENG_EMULATOR_BANKS");
    if (!path) return;
    std::string text;
    for (const auto& [kernel, places] : kernels)
      for (const auto& [place, count] : places) {
        char line[4352];
        std::snprintf(line, sizeof line, "%s\t0x%x\t%s\t%c\t%u\t%lu\t%lu\t%lu\n", module_path(), module_offset(kernel),
                      place_key(place).c_str(), count.writes ? 'w' : 'r', count.bytes, count.accesses, count.turns,
                      count.least);
        text += line;
      }
    const int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (file < 0 || write(file, text.data(), text.size()) != static_cast<ssize_t>(text.size())) std::perror(path);
    if (file >= 0) close(file);
  }
} writer;

}  // namespace

void note_access(const void* pointer, size_t bytes, bool writes, const void* pc) {
  note(pointer, bytes, writes, place_of(pc));
}
void note_access(const void* pointer, size_t bytes, bool writes, const std::source_location& site) {
  if (count_banks) note(pointer, bytes, writes, place_of(site));
}

void bank_meeting() {
  if (count_banks) ++epochs[static_cast<size_t>(thread())];
}
void bank_warp_met(int warp) {
  if (!count_banks) return;
  count_warp(static_cast<size_t>(warp));
  std::fill_n(epochs.begin() + warp * 32, 32, 0);
}
void bank_block_met() {
  for (int warp = 0; count_banks && warp * 32 < threads(); ++warp) bank_warp_met(warp);
}
void bank_kernel(const void* kernel) {
  if (count_banks) running = &kernels[kernel];
}

std::vector<BankCount> take_bank_counts(const void* kernel) {
  std::vector<BankCount> result;
  for (const auto& [place, count] : kernels[kernel]) result.push_back(count);
  kernels.erase(kernel);
  running = nullptr;
  return result;
}

}  // namespace emulator
