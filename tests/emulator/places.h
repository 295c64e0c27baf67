// Places in kernels, for reports: 32 bits for an instruction of the module that the kernels are in, or for a line.
#pragma once
#include <cstdint>
#include <source_location>
#include <string>

namespace emulator {

const char* module_path();
uint32_t module_offset(const void* address);
inline uint32_t place_of(const void* pc) { return module_offset(pc) - 1; }  // the instruction before it
uint32_t place_of(const std::source_location& site);
std::string place_text(
    uint32_t place);  // "file:line in file:line": an inlined function's place, then its caller's, ...
// What tells it outside of this process: "file:line", or the address in the module as addr2line takes it.
std::string place_key(uint32_t place);

}  // namespace emulator
