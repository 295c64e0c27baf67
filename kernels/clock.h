// Moments in seconds, and what was done between two of them.
#pragma once
#include <chrono>
#include <string>

namespace qeng {

// Of a clock that never goes back, the same in all threads.
inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Something that was done from one moment to another.
struct Span {
  std::string name;
  double begin, end;  // seconds_now()
};

}  // namespace qeng
