#include "kernels/control_groups.h"

#include <algorithm>
#include <fstream>
#include <limits>

namespace qeng {

void visit_control_groups(const std::string& root, const std::string& controller,
                          const std::function<void(const std::string& folder, int version)>& visit) {
  const auto outwards = [&](const std::string& mount, std::string path, int version) {
    for (;;) {
      visit(root + "/sys/fs/cgroup" + mount + path + "/", version);
      if (path.empty()) return;
      path.resize(path.rfind('/'));
    }
  };
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // hierarchy:controllers:path, whose root is /
    const size_t first = line.find(':'), second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos || line.compare(second + 1, 1, "/") != 0) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty()) outwards("", path, 2);
    if (("," + controllers + ",").find("," + controller + ",") == line.npos) continue;
    outwards("/" + controller, path, 1);  // most systems have this as a link where controllers share a folder
    if (controllers != controller) outwards("/" + controllers, path, 1);
  }
}

double cpu_quota(const std::string& root) {
  double least = std::numeric_limits<double>::infinity();
  visit_control_groups(root, "cpu", [&](const std::string& folder, int version) {
    double quota = -1, period = 0;  // -1 or "max": no limit
    if (version == 2) {
      std::ifstream(folder + "cpu.max") >> quota >> period;
    } else {
      std::ifstream(folder + "cpu.cfs_quota_us") >> quota;
      std::ifstream(folder + "cpu.cfs_period_us") >> period;
    }
    if (quota > 0 && period > 0) least = std::min(least, quota / period);
  });
  return least;
}

}  // namespace qeng
