#include "kernels/system_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>

#include "kernels/control_groups.h"

namespace qeng {
namespace {

constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

// The number of a file of one, or after `key` in a file of lines; `missing` if there is none.
size_t number_in(const std::string& path, size_t missing, const std::string& key = "") {
  std::ifstream file(path);
  std::string word, rest;
  while (!key.empty() && file >> word && word != key) std::getline(file, rest);
  size_t number = missing;
  return file >> number ? number : missing;
}

// How a version's memory controller names its files.
struct Controller {
  const char *limit, *used, *reclaimable;
};
constexpr Controller kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"},
                     kVersion2 = {"memory.max", "memory.current", "inactive_file"};

}  // namespace

Backend::Memory system_memory(const std::string& root) {
  const std::string machine = root + "/proc/meminfo";
  Backend::Memory memory{number_in(machine, 0, "MemAvailable:") * 1024, number_in(machine, 0, "MemTotal:") * 1024};
  visit_control_groups(root, "memory", [&](const std::string& group, int version) {
    const Controller& of = version == 2 ? kVersion2 : kVersion1;
    const size_t limit = number_in(group + of.limit, kUnlimited);  // "max" is no number
    if (limit == kUnlimited) return;
    const size_t used = number_in(group + of.used, 0);
    const size_t held = used - std::min(used, number_in(group + "memory.stat", 0, of.reclaimable));
    memory.total = std::min(memory.total, limit);
    memory.free = std::min(memory.free, limit - std::min(limit, held));
  });
  return memory;
}

}  // namespace qeng
