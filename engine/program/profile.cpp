#include "engine/program/profile.h"

#include <algorithm>

namespace qeng {

namespace {

ProfileRow& row_named(std::vector<ProfileRow>& rows, const std::string& name) {
  for (ProfileRow& row : rows)
    if (row.name == name) return row;
  rows.push_back({name});
  return rows.back();
}

void add(ProfileRow& row, const ProfileRow& one) {
  row.calls += one.calls;
  row.seconds += one.seconds;
  row.bytes += one.bytes;
  row.flops += one.flops;
  row.ideal += one.ideal;
}

}  // namespace

bool uses_bf16(const Op& op) {
  bool found = false;
  for_each_view(op, [&](const char*, const View& view, Access) { found |= view.dtype == DType::bf16; });
  return found;
}

double ideal_seconds(const Op& op, const Cost& needed, const Limits& limits) {
  const double rate = uses_bf16(op) ? limits.flops_bf16 : limits.flops_f32;
  const double moving = limits.bandwidth > 0 ? needed.bytes / limits.bandwidth : 0;
  return std::max(moving, rate > 0 ? needed.flops / rate : 0);
}

Profiler::Profiler(Device& device) : device_(device), limits_(device.limits()) {}

bool Profiler::before(const Op&, const std::string&) {
  device_.backend().synchronize();
  start_ = std::chrono::steady_clock::now();
  return true;
}

void Profiler::after(const Op& op, const std::string& label) {
  device_.backend().synchronize();
  ProfileRow one;
  one.calls = 1;
  one.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const Cost needed = cost(op, device_.backend());
  one.bytes = needed.bytes;
  one.flops = needed.flops;
  one.ideal = ideal_seconds(op, needed, limits_);
  add(row_named(ops_, op_name(op)), one);
  add(row_named(blocks_, label), one);
}

std::vector<ProfileRow> Profiler::by_op() const {
  std::vector<ProfileRow> rows = ops_;
  std::stable_sort(rows.begin(), rows.end(),
                   [](const ProfileRow& a, const ProfileRow& b) { return a.seconds > b.seconds; });
  return rows;
}

std::vector<ProfileRow> Profiler::by_block() const { return blocks_; }

ProfileRow Profiler::total() const {
  ProfileRow sum{"total"};
  for (const ProfileRow& row : ops_) add(sum, row);
  return sum;
}

}  // namespace qeng
