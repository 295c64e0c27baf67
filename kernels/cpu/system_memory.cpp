#include "kernels/cpu/system_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>

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
  const char *folder, *limit, *used, *reclaimable;
};
constexpr Controller kVersion1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"},
                     kVersion2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};

// `path`: of a group within the controller's folder, "/" for its root. In a container groups around its own may not be
// there.
void bound(Backend::Memory& memory, const std::string& root, const Controller& of, std::string path) {
  for (;;) {
    const std::string group = root + of.folder + path + "/";
    const size_t limit = number_in(group + of.limit, kUnlimited);  // "max" is no number
    if (limit < kUnlimited) {
      const size_t used = number_in(group + of.used, 0);
      const size_t held = used - std::min(used, number_in(group + "memory.stat", 0, of.reclaimable));
      memory.total = std::min(memory.total, limit);
      memory.free = std::min(memory.free, limit - std::min(limit, held));
    }
    if (path.empty()) return;
    path.resize(path.rfind('/'));
  }
}

}  // namespace

Backend::Memory system_memory(const std::string& root) {
  const std::string machine = root + "/proc/meminfo";
  Backend::Memory memory{number_in(machine, 0, "MemAvailable:") * 1024, number_in(machine, 0, "MemTotal:") * 1024};
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // hierarchy:controllers:path
    const size_t first = line.find(':'), second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos || line.compare(second + 1, 1, "/") != 0) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",", path = line.substr(second + 1);
    if (controllers == ",,") bound(memory, root, kVersion2, path);
    if (controllers.find(",memory,") != controllers.npos) bound(memory, root, kVersion1, path);
  }
  return memory;
}

}  // namespace qeng
