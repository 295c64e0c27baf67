#include "engine/program/timeline.h"

namespace qeng {

bool Timeline::before(const Op&, const std::string&) {
  device_.backend().synchronize();
  begin_ = seconds_now();
  return true;
}

void Timeline::after(const Op& op, const std::string& block) {
  device_.backend().synchronize();
  rows_.push_back({{op_name(op), begin_, seconds_now()}, block});
}

}  // namespace qeng
