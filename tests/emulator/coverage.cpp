// Which kernels were launched: $QENG_EMULATOR_KERNELS names a file that gets a line for each, the library and its
// address within it as nm shows it. tests/emulator/coverage.sh sets that against all kernels of the library.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>

#include "tests/emulator/runtime.h"

namespace emulator {

void note_launch(const void* kernel) {
  static const char* path = std::getenv("QENG_EMULATOR_KERNELS");
  static std::set<const void*> noted;
  if (!path || !noted.insert(kernel).second) return;
  Dl_info library{};
  if (!dladdr(kernel, &library)) return;
  const char* slash = std::strrchr(library.dli_fname, '/');
  char line[256];
  const int length =
      std::snprintf(line, sizeof line, "%s %016zx\n", slash ? slash + 1 : library.dli_fname,
                    reinterpret_cast<uintptr_t>(kernel) - reinterpret_cast<uintptr_t>(library.dli_fbase));
  const int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (file < 0 || write(file, line, static_cast<size_t>(length)) != length) std::perror(path);
  if (file >= 0) close(file);
}

}  // namespace emulator
