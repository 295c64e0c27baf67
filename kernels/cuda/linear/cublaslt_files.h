// What cuBLASLt needs from the file system: the library itself, and the algorithms that earlier runs chose. Plain host
// code, so that it is tested without CUDA.
#pragma once
#include <functional>
#include <map>
#include <string>

namespace qeng {

// Opens libcublasLt. Looks at, in order: $QENG_CUBLASLT (a file; nothing else is tried where it is set), what the
// loader finds as libcublasLt.so.13 and .so.12, the folder of libqeng_cuda.so, $CUDA_HOME/lib64 and lib,
// /usr/local/cuda/lib64. accept(handle) gives an empty text, or why this library cannot be used; then the search goes
// on. The handle is never closed. Error("unsupported"): one line with all that was tried and what to do.
void* open_cublaslt_library(const std::function<std::string(void* handle)>& accept);

// Choices of algorithms, as a text file: a line that names the format, one that names the machine (device, versions),
// and one per shape,
//   SHAPE | candidate 3 | ALGORITHM | 215.3 us | CRC
// The candidate is a position in the list that the library gives for the shape and ALGORITHM is what it must be, so
// that nothing of the file is ever handed to the library: a wrong line is a line without effect.
struct GemmChoice {
  int candidate = 0;
  std::string algorithm;
  double microseconds = 0;
};
using GemmChoices = std::map<std::string, GemmChoice>;  // by shape

std::string choices_text(const std::string& machine, const GemmChoices& choices);
// Lines that are wrong are left out, and complain is told of each why: "line 7: the checksum is wrong".
GemmChoices parse_choices(const std::string& text, const std::string& machine,
                          const std::function<void(const std::string&)>& complain);

// The file of one machine: $XDG_CACHE_HOME or ~/.cache, then qeng/cublaslt-MACHINE.txt. Empty: no such folder is known.
std::string choices_path(const std::string& machine);
// No such file: no choices. A file that cannot be read is complained of and counts as none.
GemmChoices read_choices(const std::string& path, const std::string& machine,
                         const std::function<void(const std::string&)>& complain);
// Adds the choices to the file, which appears whole or not at all; where another process has chosen for a shape
// already, its choice stays. Returns what the file holds afterwards. Error("io") says what could not be written.
GemmChoices add_choices(const std::string& path, const std::string& machine, const GemmChoices& choices,
                        const std::function<void(const std::string&)>& complain);

}  // namespace qeng
