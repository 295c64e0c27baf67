// The memory that this process may take: the machine's, or what its control groups leave of it.
#pragma once
#include <string>

#include "kernels/backend.h"

namespace qeng {

// Bytes that may be allocated without pushing other programs out, and the most that there may ever be. Limits of the
// process' control groups and of those around them count (cgroups(7), versions 1 and 2), their file caches do not. What
// the system does not say is 0. root: a folder in place of /, for tests.
Backend::Memory system_memory(const std::string& root = "");

}  // namespace qeng
