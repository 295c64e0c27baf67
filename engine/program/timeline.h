// When each operation ran, one after another: each is waited for, so on a GPU their sum is longer than without.
#pragma once
#include <string>
#include <vector>

#include "engine/tensor/device.h"
#include "kernels/clock.h"

namespace qeng {

class Timeline : public OpListener {
 public:
  struct Row {
    Span span;
    std::string block;
  };
  explicit Timeline(Device& device) : device_(device) {}
  bool before(const Op& op, const std::string& block) override;
  void after(const Op& op, const std::string& block) override;
  const std::vector<Row>& rows() const { return rows_; }

 private:
  Device& device_;
  double begin_ = 0;
  std::vector<Row> rows_;
};

}  // namespace qeng
