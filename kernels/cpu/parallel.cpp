#include "kernels/cpu/parallel.h"

#include <sched.h>

namespace qeng {

int available_threads() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) > 0) return CPU_COUNT(&cores);
  return 1;
}

}  // namespace qeng
