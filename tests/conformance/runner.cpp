#include "tests/conformance/runner.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <sstream>

#include "kernels/backends.h"
#include "kernels/cpu/isa/table.h"
#include "kernels/error.h"
#include "kernels/view_text.h"
#include "tests/catch.h"

namespace qeng::conformance {

std::vector<Named>& backends() {
  static std::vector<Named> list = [] {
    std::vector<Named> found;
    const char* wanted = std::getenv("QENG_BACKENDS");  // "cpu" or another kind: only those
    const auto skipped = [&](const std::string& kind) { return wanted && kind != wanted; };
    for (const char* isa : isa::kNames)
      for (int threads : {1, 2}) {
        if (skipped("cpu")) continue;
        const std::string name = std::string("cpu ") + isa + " threads " + std::to_string(threads);
        try {
          found.push_back({name, make_cpu_backend(threads, isa)});
        } catch (const Error& error) {
          if (error.code != "unsupported") throw;
          std::fprintf(stderr, "SKIPPED %s: %s\n", name.c_str(), error.what());
        }
      }
    for (const BackendKind& kind : backend_kinds()) {
      if (kind.name == "cpu" || skipped(kind.name) || (kind.priority < 0 && !wanted)) continue;
      try {
        found.push_back({kind.name, find_device(kind.name).make()});
      } catch (const Error& error) {
        if (error.code != "unsupported" || wanted) throw;
        std::fprintf(stderr, "SKIPPED %s: %s\n", kind.name.c_str(), error.what());
      }
    }
    return found;
  }();
  return list;
}

Op rebase(Op op, std::deque<Buffer>& buffers, const std::vector<void*>& places) {
  for_each_view(op, [&](const char*, View& view, Access) {
    for (size_t i = 0; i < buffers.size(); ++i)
      if (view.data == buffers[i].tensor()) {
        view.data = places[i];
        return;
      }
    throw std::logic_error("a view of no buffer");
  });
  return op;
}

namespace {

bool all_poison(const unsigned char* bytes, size_t count) {
  return std::all_of(bytes, bytes + count, [](unsigned char byte) { return byte == kPoison; });
}

}  // namespace

Outcome run_on(Backend& backend, const Op& op, std::deque<Buffer>& buffers, const std::function<void(const Op&)>& run) {
  struct Memory {  // released also when run() throws
    Backend& backend;
    std::vector<std::pair<void*, size_t>> blocks;
    ~Memory() {
      for (auto [data, size] : blocks) backend.release(data, size);
    }
  } memory{backend, {}};
  std::vector<void*> places;
  for (Buffer& buffer : buffers) {
    void* block = backend.allocate(buffer.bytes.size());
    memory.blocks.push_back({block, buffer.bytes.size()});
    backend.upload(block, buffer.bytes.data(), buffer.bytes.size());
    places.push_back(static_cast<char*>(block) + buffer.front);
  }
  const Op moved = rebase(op, buffers, places);
  run ? run(moved) : backend.run(moved);
  backend.synchronize();

  Outcome outcome;
  places.clear();
  for (size_t i = 0; i < buffers.size(); ++i) {
    outcome.memory.push_back(buffers[i]);
    backend.download(outcome.memory.back().bytes.data(), memory.blocks[i].first, memory.blocks[i].second);
    places.push_back(outcome.memory.back().tensor());
  }
  outcome.rebased = rebase(op, buffers, places);
  return outcome;
}

namespace {

// Within what f32 arithmetic may lose on this element (twice the first-order bound, for what that leaves out), and the
// rounding of the result to its dtype, where that is a float one. Results below 1e-30 may be flushed to zero.
bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }
bool close(double got, const Real& want, DType dtype) {
  if (std::isnan(want.value)) return std::isnan(got);
  if (std::isinf(want.value)) return got == want.value;
  const double least = dtype == DType::f16 ? 0x1.02p-25 : 1e-30;  // half a step where numbers are subnormal
  const double rounding = is_float(dtype) ? 1.01 * unit_roundoff(dtype) * std::fabs(want.value) : 0;
  const double bound = 2 * 0x1p-24 * want.error + rounding + least;
  return std::fabs(got - want.value) <= bound;
}

bool same(double got, double want, DType dtype) {
  if (is_float(dtype)) want = round_to(dtype, want);
  return got == want || (std::isnan(got) && std::isnan(want));
}

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream stream;
  stream.precision(9);
  (stream << ... << parts);
  return stream.str();
}

std::string compare(const char* label, const View& got, const Sheet<Real>::Result& want) {
  int64_t wrong = 0;
  std::string first;
  for (int64_t i = 0; i < got.elements(); ++i) {
    const double value = decode(got, i);
    const Real& expected = want.array[i];
    const bool exact = want.check == Sheet<Real>::Check::exact;
    if (exact ? same(value, expected.value, got.dtype) : close(value, expected, got.dtype)) continue;
    if (wrong++ == 0)
      first = text("[", i, "] is ", value, ", float64 says ", expected.value, exact ? " exactly" : " +- ",
                   exact ? std::string() : text(2 * 0x1p-24 * expected.error), " before rounding");
  }
  return wrong ? text(label, " ", shape_text(got), ": ", wrong, " of ", got.elements(), " wrong; ", first) : "";
}

}  // namespace

std::string disagreement(const Op& op, const Sheet<Real>& expected, const Outcome& outcome,
                         std::deque<Buffer>& before) {
  std::set<const void*> written;
  std::vector<std::pair<const char*, View>> host, device;
  for_each_view(op, [&](const char* label, const View& view, Access access) {
    host.push_back({label, view});
    if (access != Access::read) written.insert(view.data);
  });
  for_each_view(outcome.rebased, [&](const char* label, const View& view, Access) { device.push_back({label, view}); });
  for (size_t i = 0; i < host.size(); ++i) {
    if (!written.count(host[i].second.data)) continue;
    const auto it = expected.results.find(host[i].second.data);
    if (it == expected.results.end()) return text("the reference leaves ", host[i].first, " undefined");
    if (it->second.check == Sheet<Real>::Check::scratch) continue;
    if (std::string wrong = compare(host[i].first, device[i].second, it->second); !wrong.empty()) return wrong;
  }
  for (size_t i = 0; i < before.size(); ++i) {
    const Buffer& after = outcome.memory[i];
    if (!all_poison(after.bytes.data(), after.front) ||
        !all_poison(after.bytes.data() + after.bytes.size() - kGuard, kGuard))
      return text("tensor ", i, " was written past its ends");
    if (!written.count(before[i].tensor()) && after.bytes != before[i].bytes) return text("input ", i, " changed");
  }
  return "";
}

std::string describe(const Op& op) {
  std::string result = op_name(op);
  for_each_view(op, [&](const char* label, const View& view, Access access) {
    result += text("\n  ", label,
                   access == Access::read    ? ""
                   : access == Access::write ? " (written)"
                                             : " (updated)",
                   ": ", shape_text(view));
    const bool is_index = view.dtype == DType::i32 && view.elements() <= 8;
    for (int64_t i = 0; is_index && i < view.elements(); ++i) result += text(i ? ", " : " = ", decode(view, i));
  });
  return result;
}

void check_everywhere(const Op& op, Draw& draw) {
  Sheet<Real> expected;
  run_reference(op, expected);
  for (Named& target : backends()) {
    if (lacks(target, op)) continue;
    INFO(target.name << ": " << describe(op));
    CHECK(disagreement(op, expected, run_on(*target.backend, op, draw.buffers()), draw.buffers()) == "");
  }
}

uint64_t base_seed() {
  const char* seed = std::getenv("QENG_SEED");
  return seed ? std::strtoull(seed, nullptr, 10) : 20250101;
}

}  // namespace qeng::conformance
