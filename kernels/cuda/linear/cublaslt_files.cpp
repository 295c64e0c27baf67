#include "kernels/cuda/linear/cublaslt_files.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "kernels/error.h"
#include "kernels/math/crc16.h"

namespace qeng {

namespace fs = std::filesystem;

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Where this code was loaded from.
std::string own_folder() {
  Dl_info info{};
  if (!dladdr(reinterpret_cast<const void*>(&choices_path), &info) || !info.dli_fname) return "";
  return fs::path(info.dli_fname).parent_path().string();
}

std::vector<std::string> library_candidates() {
  const char* const names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
  std::vector<std::string> folders;
  if (const std::string own = own_folder(); !own.empty()) folders.push_back(own);
  if (const std::string home = variable("CUDA_HOME"); !home.empty())
    folders.push_back(home + "/lib64"), folders.push_back(home + "/lib");
  folders.push_back("/usr/local/cuda/lib64");
  std::vector<std::string> candidates(std::begin(names), std::end(names));
  for (const std::string& folder : folders)
    for (const char* name : names) candidates.push_back(folder + "/" + name);
  return candidates;
}

}  // namespace

void* open_cublaslt_library(const std::function<std::string(void*)>& accept) {
  const std::string given = variable("QENG_CUBLASLT");
  std::string tried;
  for (const std::string& name : given.empty() ? library_candidates() : std::vector<std::string>{given}) {
    std::string reason;
    std::error_code ignored;
    if (name.find('/') != std::string::npos && !fs::exists(name, ignored)) {
      reason = "no such file";
    } else if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      reason = accept(handle);
      if (reason.empty()) return handle;  // a refused one stays open too: closing does not undo what it allocated
    } else {
      const char* words = dlerror();
      reason = words ? words : "cannot be opened";
      // The loader's words begin with the name, which stands before them here already.
      if (reason.compare(0, name.size() + 2, name + ": ") == 0) reason.erase(0, name.size() + 2);
    }
    tried += (tried.empty() ? "" : "; ") + name + " (" + reason + ")";
  }
  if (!given.empty())
    fail("unsupported", "cuBLASLt: QENG_CUBLASLT is ", tried, "; set it to a libcublasLt.so.13 or .so.12, or unset it");
  fail("unsupported", "cuBLASLt was not found; tried ", tried,
       ". Install the CUDA toolkit's cuBLAS (Debian: libcublas12; NVIDIA: libcublas-13-0), or set QENG_CUBLASLT to a "
       "libcublasLt.so.13 or .so.12: a PyTorch with CUDA has one under site-packages/nvidia");
}

// ---------------------------------------------------------------- choices

namespace {

constexpr const char* kFormat = "qeng cublaslt choices 1";
constexpr size_t kMostBytes = 4 << 20;  // ten thousand shapes; a larger file is none of ours

std::string with_checksum(const std::string& line) {
  char text[16];
  std::snprintf(text, sizeof text, " | %04x", crc16(kCrcCcittFalse, line.data(), line.size()));
  return line + text;
}

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end; (end = line.find(" | ", begin)) != std::string::npos; begin = end + 3)
    parts.push_back(line.substr(begin, end - begin));
  parts.push_back(line.substr(begin));
  return parts;
}

// The number between prefix and suffix, which are all of the text.
template <class Number>
bool number(const std::string& text, const std::string& prefix, const std::string& suffix, Number* value) {
  if (text.size() < prefix.size() + suffix.size() || text.compare(0, prefix.size(), prefix) != 0) return false;
  const char *begin = text.data() + prefix.size(), *end = text.data() + text.size() - suffix.size();
  const auto [stop, error] = std::from_chars(begin, end, *value);
  return error == std::errc() && stop == end && suffix == end;
}

// Why a line of a shape is wrong; empty: it is in choices now.
std::string parse_line(const std::string& line, GemmChoices& choices) {
  const std::vector<std::string> parts = split(line);
  if (parts.size() != 5) return "expected 5 fields, got " + std::to_string(parts.size());
  if (with_checksum(line.substr(0, line.rfind(" | "))) != line) return "the checksum is wrong";
  GemmChoice choice;
  choice.algorithm = parts[2];
  if (!number(parts[1], "candidate ", "", &choice.candidate) || choice.candidate < 0)
    return "'" + parts[1] + "' is no candidate";
  if (!number(parts[3], "", " us", &choice.microseconds) || !std::isfinite(choice.microseconds))
    return "'" + parts[3] + "' is no time";
  if (!choices.emplace(parts[0], choice).second) return "a second choice for " + parts[0];
  return "";
}

}  // namespace

std::string choices_text(const std::string& machine, const GemmChoices& choices) {
  std::string text = std::string(kFormat) + "\n" + machine + "\n";
  for (const auto& [shape, choice] : choices) {
    char time[32];
    std::snprintf(time, sizeof time, "%.1f us", choice.microseconds);
    text += with_checksum(shape + " | candidate " + std::to_string(choice.candidate) + " | " + choice.algorithm +
                          " | " + time) +
            "\n";
  }
  return text;
}

GemmChoices parse_choices(const std::string& text, const std::string& machine,
                          const std::function<void(const std::string&)>& complain) {
  GemmChoices choices;
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line) || line != kFormat) {
    complain("line 1: expected '" + std::string(kFormat) + "'; the file is ignored");
    return choices;
  }
  if (!std::getline(lines, line) || line != machine) {
    complain("line 2: the file is of '" + line + "', this machine is '" + machine + "'; the file is ignored");
    return choices;
  }
  for (int number_of_line = 3; std::getline(lines, line); ++number_of_line)
    if (const std::string reason = parse_line(line, choices); !reason.empty())
      complain("line " + std::to_string(number_of_line) + ": " + reason + "; the line is ignored");
  return choices;
}

std::string choices_path(const std::string& machine) {
  std::string folder = variable("XDG_CACHE_HOME");
  if (folder.empty() || folder[0] != '/') {  // a relative one is to be ignored, says the specification
    folder = variable("HOME");
    if (folder.empty()) return "";
    folder += "/.cache";
  }
  std::string slug;
  for (const char c : machine) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (plain)
      slug += c;
    else if (!slug.empty() && slug.back() != '-')
      slug += '-';
  }
  return folder + "/qeng/cublaslt-" + slug.substr(0, 200) + ".txt";
}

GemmChoices read_choices(const std::string& path, const std::string& machine,
                         const std::function<void(const std::string&)>& complain) {
  std::error_code ignored;
  if (path.empty() || !fs::exists(path, ignored)) return {};
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(0, file.gcount())));
  if (file.bad() || text.empty() || text.size() > kMostBytes) {
    complain(text.size() > kMostBytes ? "the file is too large; it is ignored" : "the file cannot be read");
    return {};
  }
  return parse_choices(text, machine, complain);
}

GemmChoices add_choices(const std::string& path, const std::string& machine, const GemmChoices& choices,
                        const std::function<void(const std::string&)>& complain) {
  const auto check = [&](bool fine, const std::string& doing) {
    if (!fine) fail("io", path, ": cannot ", doing, ": ", std::strerror(errno));
  };
  struct File {
    int fd;
    ~File() {
      if (fd >= 0) ::close(fd);
    }
  };
  std::error_code reason;
  fs::create_directories(fs::path(path).parent_path(), reason);
  if (reason) fail("io", path, ": cannot make its folder: ", reason.message());
  // One process at a time reads, adds and renames; the lock goes with the descriptor.
  const File lock{::open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)};
  check(lock.fd >= 0 && ::flock(lock.fd, LOCK_EX) == 0, "lock it");

  GemmChoices all = read_choices(path, machine, complain);
  all.insert(choices.begin(), choices.end());
  const std::string text = choices_text(machine, all), temporary = path + ".tmp-" + std::to_string(::getpid());
  const File file{::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)};
  check(file.fd >= 0, "create " + temporary);
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(file.fd, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int why = errno;
      ::unlink(temporary.c_str());
      errno = why;
      check(false, "write it");
    }
    done += static_cast<size_t>(written);
  }
  check(::rename(temporary.c_str(), path.c_str()) == 0, "put it in place");
  return all;
}

}  // namespace qeng
