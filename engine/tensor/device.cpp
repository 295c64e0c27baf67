#include "engine/tensor/device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>

#include "kernels/error.h"

namespace qeng {

namespace {
// Freed buffers are kept for reuse: a step's shapes repeat, so they fit exactly. Of the host's memory others want some:
// no more of it is kept than this, and than the peaks of all accounts together. Where shapes do not repeat, as of
// requests that come and go, all that is kept is let go of then, and what repeats is soon there again.
constexpr size_t kHostCacheLimit = size_t{1} << 30;
constexpr size_t kHostCacheLeast = size_t{64} << 20;

size_t peak_of(const std::map<std::string, Account>& accounts) {
  size_t bytes = 0;
  for (const auto& [name, account] : accounts) bytes += account.peak;
  return bytes;
}

size_t rounded(size_t bytes) {
  const size_t grain = bytes >= 65536 ? 4096 : 64;  // a page for large buffers, a cache line for small ones
  return bytes ? (bytes + grain - 1) / grain * grain : grain;
}
}  // namespace

Buffer::~Buffer() {
  if (!device) return;
  Account& entry = device->accounts_[account];
  if (!virtual_pages) entry.bytes -= bytes;
  if (owner) {  // which may end now: not under operations that are queued, where the device reads the host's memory
    if (device->backend_->reads_host_memory() && !device->backend_->host_memory())
      device->finish("memory of a file was let go");
    return;
  }
  if (!virtual_pages) entry.held -= bytes;
  const size_t size = rounded(bytes);
  if (virtual_pages) {
    munmap(data, size);
  } else if (!device->backend_->host_memory() || device->cached_ + size <= kHostCacheLimit) {
    if (device->backend_->host_memory() && device->cached_ + size > kHostCacheLeast &&
        device->cached_ + size > peak_of(device->accounts_))
      device->trim();
    device->cache_[size].push_back(data);
    device->cached_ += size;
  } else {
    device->backend_->release(data, size);
    device->held_ -= size;
  }
}

Device::Device(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {
  backend_->set_reclaim([this] { give_back(); });
  backend_->set_on_scratch([this](size_t bytes) { hold(bytes, "scratch", ""); });
}
Device::~Device() { trim(); }

void Device::finish(const std::string& doing) noexcept {
  try {
    backend_->synchronize();
  } catch (const std::exception& error) {  // of what nobody waited for, or of a device that fails at everything by now
    std::fprintf(stderr, "qeng: while %s: %s\n", doing.c_str(), error.what());
  }
}

void Device::run(const Op& op, bool again) {
  if (!again && !out_of_reach_.empty()) check_reach(op);
  if (!again && pending_)
    for_each_view(op, [this](const char*, const View& view, Access access) {
      if (access != Access::read) before_write(&view);
    });
  if (listener_ && !listener_->before(op, label())) return;
  again ? backend_->repeat(op) : backend_->run(op);
  if (listener_) listener_->after(op, label());
}

std::shared_ptr<void> Device::put_out_of_reach(const void* data, size_t bytes, const std::string& why) {
  const char* begin = static_cast<const char*>(data);
  out_of_reach_[begin] = {bytes, why};
  return {nullptr, [this, begin](void*) { out_of_reach_.erase(begin); }};
}

void Device::check_reach(const View& view) const {
  const char* data = static_cast<const char*>(view.data);
  auto found = out_of_reach_.upper_bound(data);
  if (found == out_of_reach_.begin()) return;
  --found;
  if (data < found->first + found->second.bytes) fail("value", found->second.why);
}

void Device::check_reach(const Op& op) const {
  for_each_view(op, [this](const char*, const View& view, Access) { check_reach(view); });
}

void Device::push_label(const std::string& label) {
  labels_.push_back(labels_.back().empty() ? label : labels_.back() + "." + label);
}

void Device::credit(const std::string& account, size_t bytes, bool held) {
  Account& entry = accounts_[account];
  entry.bytes += bytes;
  if (held) entry.held += bytes;
  entry.peak = std::max(entry.peak, entry.bytes);
}

// Before memory is refused what lies idle is given up, then what can be had again, then what the host has dropped.
void Device::make_room(size_t bytes, const std::string& account, const std::string& what) {
  if (!budget_ || held_ + bytes <= budget_) return;
  trim();
  if (held_ + bytes > budget_ && reclaim_) reclaim_(held_ + bytes - budget_);
  if (held_ + bytes > budget_ && collect_) give_back();
  if (held_ + bytes <= budget_) return;
  std::vector<std::pair<size_t, std::string>> largest;
  for (const auto& [name, entry] : accounts_)
    if (entry.held) largest.emplace_back(entry.held, name);
  std::sort(largest.rbegin(), largest.rend());
  std::string taken;
  for (size_t i = 0; i < std::min<size_t>(largest.size(), 4); ++i)
    taken += (i ? ", " : "; in use: ") + largest[i].second + " " + std::to_string(largest[i].first);
  fail("memory", account, what.empty() ? "" : " (" + what + ")", label().empty() ? "" : " in " + label(), ": ", bytes,
       " bytes more would exceed the ", budget_, " that ", budget_option_, " leaves, of which ", held_, " are held",
       taken, ". Give ", budget_option_, " more, use fewer or shorter rows, recompute activations",
       reclaims() ? "" : ", or stream the weights");
}

void Device::hold(size_t bytes, const std::string& account, const std::string& what) {
  make_room(bytes, account, what);
  held_ += bytes;
  credit(account, bytes, true);
}

void Device::let_go(size_t bytes, const std::string& account) {
  held_ -= bytes;
  accounts_[account].bytes -= bytes;
  accounts_[account].held -= bytes;
}

double Device::limit(Limit which) {
  if (const size_t bytes = backend_->limit_memory(which)) make_room(bytes, "limits", "to measure the device");
  return backend_->limit(which);
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
    make_room(size, account, "");
    try {
      buffer->data = backend_->allocate(size);
    } catch (const Error&) {
      give_back();
      buffer->data = backend_->allocate(size);
    }
    held_ += size;
  }
  buffer->device = this;
  buffer->keeps = weak_from_this().lock();
  buffer->bytes = bytes;
  buffer->account = account;
  since_ += size;
  if (!buffer->virtual_pages) credit(account, bytes, true);
  return buffer;
}

std::shared_ptr<Buffer> Device::adopt(void* data, size_t bytes, const std::string& account,
                                      std::shared_ptr<void> owner) {
  auto buffer = std::make_shared<Buffer>();
  buffer->device = this;
  buffer->keeps = weak_from_this().lock();
  buffer->data = data;
  buffer->bytes = bytes;
  buffer->account = account;
  buffer->owner = std::move(owner);
  credit(account, bytes, false);
  return buffer;
}

void Device::give_back() {
  if (collect_) collect_();
  trim();
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
