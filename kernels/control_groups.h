// Limits of the control groups (cgroups(7), versions 1 and 2) around this process.
#pragma once
#include <functional>
#include <string>

namespace qeng {

// visit(folder, version) for the process' group of a controller ("cpu", "memory") and each around it, from the inside
// out; folder ends with /. In a container, groups around its own may not be there. root: a folder in place of /, for
// tests.
void visit_control_groups(const std::string& root, const std::string& controller,
                          const std::function<void(const std::string& folder, int version)>& visit);

// Cores' worth of time that the process may take, infinity without a limit.
double cpu_quota(const std::string& root = "");

}  // namespace qeng
