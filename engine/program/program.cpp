#include "engine/program/program.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "kernels/error.h"
#include "kernels/lm_head.h"
#include "kernels/view_text.h"

namespace qeng {

namespace {

constexpr size_t kAlign = 64;
// So many operations on, the memory of a temporary of up to so many bytes is not another's yet: a backend may run a few
// operations of a recording as one, where none writes what another still reads.
constexpr size_t kLonger = 5, kSmall = size_t{1} << 20;

class Recorder : public OpListener {
 public:
  explicit Recorder(std::vector<LabelledOp>& ops) : ops_(ops) {}
  bool before(const Op& op, const std::string& label) override {
    ops_.push_back({op, label});
    return false;
  }

 private:
  std::vector<LabelledOp>& ops_;
};

struct Lifetime {
  Buffer* buffer;
  size_t first = SIZE_MAX, last = 0;  // op numbers
  size_t offset = 0, size = 0;
};

// First fit in order of size: each buffer goes to the lowest offset free during its whole life.
size_t place(std::vector<Lifetime*> lives) {
  std::stable_sort(lives.begin(), lives.end(), [](auto* a, auto* b) { return a->size > b->size; });
  std::vector<Lifetime*> placed;
  size_t total = 0;
  for (Lifetime* life : lives) {
    size_t offset = 0;
    for (Lifetime* other : placed) {  // sorted by offset
      if (other->last < life->first || other->first > life->last) continue;
      if (other->offset >= offset + life->size) break;
      offset = std::max(offset, other->offset + other->size);
    }
    life->offset = offset;
    total = std::max(total, offset + life->size);
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), life, [](auto* a, auto* b) { return a->offset < b->offset; }),
        life);
  }
  return total;
}

}  // namespace

std::unique_ptr<Program> Program::capture(Device& device, const std::function<void()>& fn) {
  if (device.capturing()) fail("value", "a program is being captured already");
  device.before_write(nullptr);  // what is pending is no part of the program
  std::unique_ptr<Program> program(new Program(device));
  Captured captured;
  Recorder recorder(program->ops_);
  OpListener* before = device.listener();
  device.set_listener(&recorder);
  device.set_capturing(&captured);
  try {
    fn();
    device.before_write(nullptr);
  } catch (...) {
    device.set_capturing(nullptr);
    device.set_listener(before);
    throw;
  }
  device.set_capturing(nullptr);
  device.set_listener(before);
  program->plan(captured);
  return program;
}

void Program::plan(Captured& captured) {
  std::map<char*, Lifetime> lives;  // by address
  for (auto& buffer : captured.buffers) {
    if (buffer.use_count() > 1 || buffer->constant) {
      kept_.push_back(buffer);
    } else {
      Lifetime life{buffer.get()};
      life.size = std::max((buffer->bytes + kAlign - 1) / kAlign * kAlign, kAlign);
      lives.emplace(static_cast<char*>(buffer->data), life);
      temporaries_ += life.size;
    }
  }
  const auto find = [&](const View& view) -> Lifetime* {
    char* address = static_cast<char*>(view.data);
    auto after = lives.upper_bound(address);
    if (after == lives.begin()) return nullptr;
    Lifetime& life = std::prev(after)->second;
    return address < static_cast<char*>(life.buffer->data) + life.size ? &life : nullptr;
  };
  for (size_t i = 0; i < ops_.size(); ++i)
    for_each_view(ops_[i].op, [&](const char*, View& view, Access) {
      if (Lifetime* life = find(view)) life->first = std::min(life->first, i), life->last = std::max(life->last, i);
    });
  std::vector<Lifetime*> used;
  for (auto& [address, life] : lives)
    if (life.first != SIZE_MAX) {
      if (life.size <= kSmall) life.last += kLonger;
      used.push_back(&life);
    }
  if (const size_t bytes = place(used)) arena_ = device_.allocate(bytes, "activations");
  for (LabelledOp& labelled : ops_)
    for_each_view(labelled.op, [&](const char*, View& view, Access) {
      if (Lifetime* life = find(view))
        view.data = static_cast<char*>(arena_->data) + life->offset +
                    (static_cast<char*>(view.data) - static_cast<char*>(life->buffer->data));
    });
  for (size_t i = 0; i < ops_.size(); ++i)
    if (std::holds_alternative<LmHeadLoss>(ops_[i].op)) heads_.push_back(i);
  captured.buffers.clear();
  for (const auto& stream : captured.streams) copies_.push_back({stream, {}});
  give_memory(captured.tensors);
  find_written();
}

// The buffers that outlive the capture get memory of the device. Whoever shows them, an op or a tensor, is told.
void Program::give_memory(const std::vector<std::weak_ptr<Tensor>>& tensors) {
  struct Move {
    size_t bytes;
    char* to;
  };
  std::map<char*, Move> moves;  // by old address
  for (const auto& buffer : kept_) {
    if (!buffer->virtual_pages) continue;
    const std::shared_ptr<Buffer> fresh = device_.allocate(buffer->bytes, buffer->account);
    moves[static_cast<char*>(buffer->data)] = {buffer->bytes, static_cast<char*>(fresh->data)};
    std::swap(buffer->data, fresh->data);  // the address space goes with `fresh`
    std::swap(buffer->virtual_pages, fresh->virtual_pages);
  }
  const auto move = [&](View& view) {
    char* address = static_cast<char*>(view.data);
    const auto after = moves.upper_bound(address);
    if (after == moves.begin()) return;
    const auto& [from, moved] = *std::prev(after);
    if (address < from + std::max<size_t>(moved.bytes, 1)) view.data = moved.to + (address - from);
  };
  for (LabelledOp& labelled : ops_) for_each_view(labelled.op, [&](const char*, View& view, Access) { move(view); });
  for (const auto& weak : tensors)
    if (const TensorPtr tensor = weak.lock()) move(tensor->view);
}

// Without the arena, which nothing outside of the program reads.
void Program::find_written() {
  const View arena(arena_ ? arena_->data : nullptr, DType::u8, {static_cast<int64_t>(arena_bytes())});
  std::vector<View> all;
  for (const LabelledOp& labelled : ops_)
    for_each_view(labelled.op, [&](const char*, const View& view, Access access) {
      const View bytes(view.data, DType::u8, {static_cast<int64_t>(view.bytes())});
      if (access != Access::read && !overlap(bytes, arena)) all.push_back(bytes);
    });
  std::sort(all.begin(), all.end(), [](const View& a, const View& b) { return a.as<char>() < b.as<char>(); });
  for (const View& view : all) {
    if (written_.empty() || !overlap(written_.back(), view)) {
      written_.push_back(view);
      continue;
    }
    View& last = written_.back();
    last.shape[0] = std::max(last.shape[0], view.as<char>() - last.as<char>() + view.shape[0]);
  }
}

// Its operations are set for the run.
Program::Variant& Program::variant(int64_t trained) {
  std::vector<int64_t> rows;
  for (const size_t number : heads_) {
    auto& head = std::get<LmHeadLoss>(ops_[number].op);
    head.trained = head_rows(head.h.rows(), trained);
    rows.push_back(head.trained);
  }
  return variants_[rows];
}

void Program::run(int64_t trained) {
  if (device_.pending())  // operations that are repeated do not ask before they write
    for (const View& view : written_) device_.before_write(&view);
  Variant& variant = this->variant(trained);
  // Listeners see each operation. A device that records does so when all of them have run once, which makes it ready.
  if (variant.ran && !device_.listener()) {
    if (!variant.recording && records()) record(variant);
    if (variant.recording) {
      variant.recording->replay();
      for (const auto& [stream, copies] : copies_) stream->repeated(copies);
      if (after_) after_(ops_.size() - 1);
      return;
    }
  }
  run_each(variant);
}

bool Program::records() const {
  return std::all_of(copies_.begin(), copies_.end(), [](const Copies& copies) { return copies.stream->recordable(); });
}

// What recording seems to copy is what each replay copies.
void Program::record(Variant& variant) {
  for (auto& [stream, copies] : copies_) copies = stream->figures();
  variant.recording = device_.backend().record([&] { run_each(variant); });
  for (auto& [stream, copies] : copies_) {
    const StreamFigures after = stream->figures();
    const StreamFigures before = copies;
    copies.bytes = after.bytes - before.bytes, copies.fetches = after.fetches - before.fetches;
    if (variant.recording) stream->repeated({.bytes = -copies.bytes, .fetches = -copies.fetches});
  }
}

void Program::run_each(Variant& variant) {
  Block block(device_, "");
  for (size_t i = 0; i < ops_.size(); ++i) {
    device_.set_label(ops_[i].label);
    checked_ ? device_.repeat(ops_[i].op) : device_.run(ops_[i].op);
    if (after_) after_(i);
  }
  if (!device_.listener()) checked_ = variant.ran = true;  // a listener may have kept operations from running
}

size_t Program::nodes() const {
  size_t nodes = 0;
  for (const auto& [rows, variant] : variants_)
    if (variant.recording) nodes = std::max(nodes, variant.recording->nodes());
  return nodes;
}

Cost Program::total_cost() const {
  Cost total;
  for (const LabelledOp& labelled : ops_) {
    const Cost one = cost(labelled.op, device_.backend());
    total.bytes += one.bytes;
    total.flops += one.flops;
  }
  return total;
}

std::string op_text(const Op& op, const std::string& label, Backend& backend) {
  std::string text = label.empty() ? "" : label + ": ";
  text += op_name(op);
  text += "(";
  bool first = true;
  for_each_view(op, [&](const char* name, const View& view, Access access) {
    text += first ? "" : ", ";
    text += std::string(access == Access::read    ? ""
                        : access == Access::write ? "->"
                                                  : "+>") +
            name + " " + shape_text(view);
    first = false;
  });
  const Cost one = cost(op, backend);
  char numbers[64];
  std::snprintf(numbers, sizeof numbers, ")  %.3g MFLOP  %.3g MB", one.flops / 1e6, one.bytes / 1e6);
  return text + numbers;
}

}  // namespace qeng
