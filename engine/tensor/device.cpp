#include "engine/tensor/device.h"

#include <sys/mman.h>

#include "kernels/error.h"

namespace qeng {

namespace {
// Freed buffers are kept for reuse: a step's shapes repeat, so they fit exactly. Of the host's memory others want some.
constexpr size_t kHostCacheLimit = size_t{1} << 30;

size_t rounded(size_t bytes) {
  const size_t grain = bytes >= 65536 ? 4096 : 64;  // a page for large buffers, a cache line for small ones
  return bytes ? (bytes + grain - 1) / grain * grain : grain;
}
}  // namespace

Buffer::~Buffer() {
  if (!device) return;
  if (!virtual_pages) device->accounts_[account].bytes -= bytes;
  if (owner) return;
  const size_t size = rounded(bytes);
  if (virtual_pages) {
    munmap(data, size);
  } else if (!device->backend_->host_memory() || device->cached_ + size <= kHostCacheLimit) {
    device->cache_[size].push_back(data);
    device->cached_ += size;
  } else {
    device->backend_->release(data, size);
    device->held_ -= size;
  }
}

Device::Device(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}
Device::~Device() { trim(); }

void Device::run(const Op& op) {
  if (listener_ && !listener_->before(op, label())) return;
  backend_->run(op);
  if (listener_) listener_->after(op, label());
}

void Device::push_label(const std::string& label) {
  labels_.push_back(labels_.back().empty() ? label : labels_.back() + "." + label);
}

void Device::credit(const std::string& account, size_t bytes) {
  Account& entry = accounts_[account];
  entry.bytes += bytes;
  entry.peak = std::max(entry.peak, entry.bytes);
}

std::shared_ptr<Buffer> Device::allocate(size_t bytes, const std::string& account) {
  const size_t size = rounded(bytes);
  auto buffer = std::make_shared<Buffer>();
  if (captured_) {
    void* pages = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) fail("memory", "no address space for ", size, " bytes while capturing");
    buffer->data = pages;
    buffer->virtual_pages = true;
    captured_->buffers.push_back(buffer);
  } else if (auto found = cache_.find(size); found != cache_.end() && !found->second.empty()) {
    buffer->data = found->second.back();
    found->second.pop_back();
    cached_ -= size;
  } else {
    if (budget_ && held_ + size > budget_) trim();
    if (budget_ && held_ + size > budget_)
      fail("memory", account, ": ", bytes, " bytes more would exceed the budget of ", budget_, " (", held_,
           " in use); use fewer or shorter rows, or recompute");
    try {
      buffer->data = backend_->allocate(size);
    } catch (const Error&) {
      trim();
      buffer->data = backend_->allocate(size);
    }
    held_ += size;
  }
  buffer->device = this;
  buffer->bytes = bytes;
  buffer->account = account;
  since_ += size;
  if (!buffer->virtual_pages) credit(account, bytes);
  return buffer;
}

std::shared_ptr<Buffer> Device::adopt(void* data, size_t bytes, const std::string& account, std::shared_ptr<void> owner) {
  auto buffer = std::make_shared<Buffer>();
  buffer->device = this;
  buffer->data = data;
  buffer->bytes = bytes;
  buffer->account = account;
  buffer->owner = std::move(owner);
  credit(account, bytes);
  return buffer;
}

size_t Device::allocated_since(bool reset) {
  const size_t bytes = since_;
  if (reset) since_ = 0;
  return bytes;
}

void Device::trim() {
  for (auto& [size, pieces] : cache_) {
    for (void* piece : pieces) backend_->release(piece, size);
    held_ -= size * pieces.size();
  }
  cache_.clear();
  cached_ = 0;
}

}  // namespace qeng
