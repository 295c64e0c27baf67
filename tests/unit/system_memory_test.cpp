#include "kernels/system_memory.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/catch.h"

using namespace qeng;

namespace {

// A folder that looks like / to system_memory.
struct System {
  std::string root = std::filesystem::temp_directory_path() / ("qeng-system-" + std::to_string(::getpid()));
  System() {
    std::filesystem::remove_all(root);
    file("/proc/meminfo", "MemTotal:       32768 kB\nMemFree:         1024 kB\nMemAvailable:   16384 kB\n");
  }
  ~System() { std::filesystem::remove_all(root); }
  void file(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    std::ofstream(root + path) << text;
  }
};
constexpr size_t kMiB = size_t{1} << 20;

}  // namespace

TEST_CASE("memory is the machine's where no control group bounds it") {
  const System system;
  CHECK(system_memory(system.root).total == 32 * kMiB);
  CHECK(system_memory(system.root).free == 16 * kMiB);
  system.file("/proc/self/cgroup", "0::/user.slice\n");
  system.file("/sys/fs/cgroup/user.slice/memory.max", "max\n");
  CHECK(system_memory(system.root).total == 32 * kMiB);
  CHECK(system_memory(system.root).free == 16 * kMiB);
  CHECK(system_memory(system.root + "/none").total == 0);
}

TEST_CASE("memory is what control groups of version 2 leave, those around the process' own too") {
  const System system;
  system.file("/proc/self/cgroup", "0::/a/b\n");
  system.file("/sys/fs/cgroup/a/b/memory.max", "max\n");
  system.file("/sys/fs/cgroup/a/memory.max", std::to_string(8 * kMiB) + "\n");
  system.file("/sys/fs/cgroup/a/memory.current", std::to_string(5 * kMiB) + "\n");
  system.file("/sys/fs/cgroup/a/memory.stat",
              "anon 1\ninactive_file " + std::to_string(2 * kMiB) + "\nactive_file 7\n");
  CHECK(system_memory(system.root).total == 8 * kMiB);
  CHECK(system_memory(system.root).free == 5 * kMiB);
  system.file("/sys/fs/cgroup/a/memory.current", std::to_string(11 * kMiB) + "\n");  // more than the limit
  CHECK(system_memory(system.root).free == 0);
}

TEST_CASE(
    "memory is what control groups of version 1 leave, whose path may be that of the machine around a container") {
  const System system;
  system.file("/proc/self/cgroup", "4:cpu,memory:/docker/123\n3:cpuset:/\n0::/\nnonsense\n");
  system.file("/sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(6 * kMiB) + "\n");
  system.file("/sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(kMiB) + "\n");
  CHECK(system_memory(system.root).total == 6 * kMiB);
  CHECK(system_memory(system.root).free == 5 * kMiB);
  system.file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // none
  CHECK(system_memory(system.root).total == 32 * kMiB);
}
