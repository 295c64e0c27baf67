#include "kernels/control_groups.h"

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/catch.h"

using namespace qeng;

namespace {

// A folder that looks like / to cpu_quota.
struct System {
  std::string root;
  explicit System(const std::string& name = "") {
    root = std::filesystem::temp_directory_path() / ("qeng-groups-" + std::to_string(::getpid()) + name);
    std::filesystem::remove_all(root);
  }
  ~System() { std::filesystem::remove_all(root); }
  void file(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    std::ofstream(root + path) << text;
  }
};

}  // namespace

TEST_CASE("without a control group that says so there is no quota of the processors") {
  const System system;
  CHECK(std::isinf(cpu_quota(system.root)));
  system.file("/proc/self/cgroup", "0::/user.slice\n");
  CHECK(std::isinf(cpu_quota(system.root)));
  system.file("/sys/fs/cgroup/user.slice/cpu.max", "max 100000\n");
  CHECK(std::isinf(cpu_quota(system.root)));
}

TEST_CASE("the quota of the processors is the least of the groups of version 2 around the process") {
  const System system;
  system.file("/proc/self/cgroup", "0::/a/b\n");
  system.file("/sys/fs/cgroup/a/b/cpu.max", "150000 100000\n");
  CHECK(cpu_quota(system.root) == 1.5);
  system.file("/sys/fs/cgroup/a/cpu.max", "25000 50000\n");
  CHECK(cpu_quota(system.root) == 0.5);
}

TEST_CASE("the quota of a container is that of its root, version 2 and version 1") {
  const System two("two"), one("one");
  two.file("/proc/self/cgroup", "0::/\n");
  two.file("/sys/fs/cgroup/cpu.max", "200000 100000\n");
  CHECK(cpu_quota(two.root) == 2);
  one.file("/proc/self/cgroup", "4:cpu,cpuacct:/docker/123\n3:memory:/\n0::/\n");
  one.file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  one.file("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  CHECK(std::isinf(cpu_quota(one.root)));
  one.file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n");
  CHECK(cpu_quota(one.root) == 3);
  one.file("/sys/fs/cgroup/cpu,cpuacct/docker/123/cpu.cfs_quota_us", "100000\n");
  one.file("/sys/fs/cgroup/cpu,cpuacct/docker/123/cpu.cfs_period_us", "100000\n");
  CHECK(cpu_quota(one.root) == 1);
}
