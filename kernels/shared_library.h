// Where qeng's own shared libraries lie: those of backends (backend_libraries.cpp) and of what starts several processes
// (engine/ranks).
#pragma once
#include <string>

namespace qeng {

// The path of a library of this name beside the executable, or in its ../lib; "": there is none.
std::string own_library(const std::string& name);

}  // namespace qeng
