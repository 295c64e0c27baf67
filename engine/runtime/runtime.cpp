#include "engine/runtime/runtime.h"

#include <algorithm>

namespace qeng {

namespace {

std::vector<Runtime*>& runtimes() {
  static auto& all = *new std::vector<Runtime*>;  // those that are left at exit may still ask
  return all;
}

}  // namespace

const std::vector<Runtime*>& Runtime::all() { return runtimes(); }

Runtime::Runtime(std::unique_ptr<Backend> backend)
    : device_(std::make_shared<Device>(std::move(backend))), tape_(*device_) {
  device_->set_runtime(this);
  runtimes().push_back(this);
}

Runtime::~Runtime() {
  runtimes().erase(std::find(runtimes().begin(), runtimes().end(), this));
  device_->set_runtime(nullptr);
}

BatchStage& Runtime::batch_stage(const Batch& batch) {
  if (!stage_ || !stage_->fits(batch)) stage_ = std::make_unique<BatchStage>(*device_, batch);
  return *stage_;
}

}  // namespace qeng
