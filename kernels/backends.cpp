#include "kernels/backends.h"

#include <algorithm>

#include "kernels/error.h"

namespace qeng {

namespace {

std::vector<BackendKind>& kinds() {
  static std::vector<BackendKind> all;
  return all;
}

std::string list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

bool register_backend(BackendKind kind) {
  const auto before = [&](const BackendKind& other) { return other.priority < kind.priority; };
  kinds().insert(std::find_if(kinds().begin(), kinds().end(), before), std::move(kind));
  return true;
}

const std::vector<BackendKind>& backend_kinds() { return kinds(); }

FoundDevice find_device(const std::string& name, int process) {
  const size_t colon = std::min(name.find(':'), name.size());
  const std::string stem = name.substr(0, colon), number = name.substr(std::min(colon + 1, name.size()));
  const bool numbered = colon < name.size();
  const bool fits =
      !numbered || (!number.empty() && number.size() < 4 && number.find_first_not_of("0123456789") == number.npos);
  const size_t turn = fits && numbered ? std::stoul(number) : static_cast<size_t>(process);
  std::vector<std::string> names{"auto"}, there;
  for (const BackendKind& kind : kinds()) {
    std::string why;
    if (name != "auto" && (stem != kind.name || !fits)) {
      names.push_back(kind.name);
      continue;
    }
    const std::vector<DeviceInfo> devices = kind.devices(&why);
    const size_t index = numbered || devices.empty() ? turn : turn % devices.size();
    if (index < devices.size()) return {&kind, static_cast<int>(index)};
    if (name == "auto") continue;
    for (const BackendKind& other : kinds())
      for (const DeviceInfo& device : other.devices(nullptr)) there.push_back(device.name);
    fail("unsupported", "device ", name, ": ", devices.empty() ? why : "there is none of this number",
         "; this machine has ", list(there));
  }
  fail("value", "device: '", name, "'; expected ", list(names), ", or one of several as NAME:1");
}

}  // namespace qeng
