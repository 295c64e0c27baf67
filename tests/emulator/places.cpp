#include "tests/emulator/places.h"

#include <dlfcn.h>

#include <cstdio>
#include <map>
#include <utility>
#include <vector>

namespace emulator {

namespace {

const Dl_info& module() {
  static const Dl_info info = [] {
    Dl_info found{};
    dladdr(reinterpret_cast<const void*>(&module_path), &found);
    return found;
  }();
  return info;
}

// With this bit a place is the number of a source location, and else an offset into the module.
constexpr uint32_t kIsSite = 1u << 31;
std::vector<std::source_location>& sites = *new std::vector<std::source_location>;  // reports may come after exit()

}  // namespace

const char* module_path() { return module().dli_fname; }

uint32_t module_offset(const void* address) {
  return static_cast<uint32_t>(static_cast<const char*>(address) - static_cast<const char*>(module().dli_fbase));
}
uint32_t place_of(const std::source_location& site) {
  static std::map<std::pair<const char*, uint32_t>, uint32_t> known;
  const auto [found, fresh] = known.try_emplace({site.file_name(), site.line()}, sites.size());
  if (fresh) sites.push_back(site);
  return kIsSite | found->second;
}

std::string place_key(uint32_t place) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%x", place);
  if (!(place & kIsSite)) return text;
  const auto& site = sites[place & ~kIsSite];
  const std::string file = site.file_name();
  return file.substr(file.rfind('/') + 1) + ":" + std::to_string(site.line());
}

std::string place_text(uint32_t place) {
  if (place & kIsSite) return place_key(place);
  const std::string command =
      std::string("addr2line -i -e '") + module_path() + "' " + place_key(place) + " 2>/dev/null";
  std::string text;
  if (FILE* pipe = popen(command.c_str(), "r")) {
    char line[1024];
    while (std::fgets(line, sizeof line, pipe)) {
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

}  // namespace emulator
