// A file that is still coming, as its reader sees it. Calls may come from several threads.
#pragma once
#include <cstdint>

namespace qeng {

class Arrival {
 public:
  virtual ~Arrival() = default;
  // Returns when bytes first .. end - 1 are here, at once where they are. Error("network"): they will not come.
  virtual void wait(uint64_t first, uint64_t end) = 0;
  // They will be read, after those that were named before; next: or before all others.
  virtual void expect(uint64_t first, uint64_t end, bool next) = 0;
};

}  // namespace qeng
