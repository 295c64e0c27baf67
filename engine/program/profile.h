// Where the time goes: each op timed against its cost and the device's measured limits.
#pragma once
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "engine/tensor/device.h"

namespace qeng {

struct ProfileRow {
  std::string name;
  int64_t calls = 0;
  double seconds = 0, bytes = 0, flops = 0;
  double ideal = 0;  // ideal_seconds
};

bool uses_bf16(const Op& op);  // such an op is set against the rate of bf16
// Seconds of the op at the limits: the larger of bytes over bandwidth and flops over the rate of the dtype; 0 where the
// limits are not known.
double ideal_seconds(const Op& op, const Cost& needed, const Limits& limits);

class Profiler : public OpListener {
 public:
  explicit Profiler(Device& device);
  bool before(const Op& op, const std::string& label) override;
  void after(const Op& op, const std::string& label) override;

  std::vector<ProfileRow> by_op() const;     // longest first
  std::vector<ProfileRow> by_block() const;  // in order of first run
  ProfileRow total() const;

 private:
  Device& device_;
  Limits limits_;
  std::chrono::steady_clock::time_point start_;
  std::vector<ProfileRow> ops_, blocks_;
};

}  // namespace qeng
