// The order of units, a device's budget, and a mapped file that is streamed within a limit.
#include <unistd.h>

#include <fstream>

#include "engine/formats/mapped_file.h"
#include "engine/stream/mapped_stream.h"
#include "engine/stream/order.h"
#include "engine/stream/pages.h"
#include "engine/stream/spilled_file.h"
#include "kernels/error.h"
#include "tests/catch.h"

using namespace qeng;

namespace {

std::string message_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.code + ": " + error.what();
  }
  return "nothing thrown";
}

constexpr size_t kUnit = size_t{1} << 20;

// A file of `units` MB, unit i of bytes i, mapped; removed at the end.
struct UnitFile {
  explicit UnitFile(int units) {
    path = std::string(P_tmpdir) + "/qeng_stream_" + std::to_string(getpid());
    std::ofstream out(path, std::ios::binary);
    for (int i = 0; i < units; ++i) out << std::string(kUnit, static_cast<char>(i));
    out.close();
    file = MappedFile::open(path);
  }
  ~UnitFile() { ::unlink(path.c_str()); }
  StreamUnit unit(Device& device, int i) const {
    auto* data = const_cast<std::byte*>(file->data()) + static_cast<size_t>(i) * kUnit;
    return {"unit " + std::to_string(i),
            {adopt_tensor(device, data, {static_cast<int64_t>(kUnit)}, DType::u8, "weights",
                          std::const_pointer_cast<MappedFile>(file))},
            i == 0};
  }
  std::string path;
  std::shared_ptr<const MappedFile> file;
};

}  // namespace

TEST_CASE("units come in the order of inference, of a forward pass and of the way back") {
  const auto order = [](int at, Pass pass) {
    std::vector<int> units;
    for (int steps = 1; steps <= 8; ++steps) units.push_back(unit_after(at, steps, 5, pass));
    return units;
  };
  CHECK(order(3, Pass::inference) == std::vector<int>{4, 0, 1, 2, 3, 4, 0, 1});
  CHECK(order(3, Pass::forward) == std::vector<int>{4, 3, 2, 1, 0, 1, 2, 3});
  CHECK(order(3, Pass::backward) == std::vector<int>{2, 1, 0, 1, 2, 3, 4, 3});
  for (const Pass pass : {Pass::inference, Pass::forward, Pass::backward})
    for (int at = 0; at < 5; ++at)
      for (int unit = 0; unit < 5; ++unit)
        if (unit != at) CHECK(unit_after(at, steps_until(unit, at, 5, pass), 5, pass) == unit);
}

TEST_CASE("a budget is kept, its error names account and block, and what can be had again goes first") {
  Device device(make_cpu_backend(1));
  device.set_budget(1 << 20, "--device-budget");
  auto first = device.allocate(600 << 10, "weights");
  device.push_label("layers.3");
  CHECK_THAT(
      message_of([&] { device.allocate(600 << 10, "activations"); }),
      containing("memory: activations in layers.3") && containing("in use: weights 614400. Give --device-budget more"));
  first.reset();  // kept for reuse, and given up for this
  CHECK_NOTHROW(device.allocate(700 << 10, "activations"));
  device.trim();
  device.hold(900 << 10, "streamed weights", "layers.1");
  size_t asked = 0;
  device.set_reclaim([&](size_t bytes) { asked = bytes, device.let_go(900 << 10, "streamed weights"); });
  auto second = device.allocate(600 << 10, "activations");
  CHECK(asked == (900 << 10) + (600 << 10) - (1 << 20));
  device.set_reclaim({});
  CHECK_THAT(message_of([&] { device.hold(1 << 20, "streamed weights", "head"); }),
             containing("streamed weights (head)"));
}

TEST_CASE("memory of operations and of measuring counts against the budget") {
  Device device(make_cpu_backend(1));
  const TensorPtr bits = make_tensor(device, {64, 4096}, DType::one_bit, "weights"),
                  dy = make_tensor(device, {1, 64}, DType::f32, "workspace"),
                  x = make_tensor(device, {1, 4096}, DType::f32, "workspace"),
                  pulses = make_tensor(device, {64, 4096}, DType::ternary, "workspace"),
                  hyper = make_tensor(device, {4}, DType::f32, "optimizer"),
                  rng = make_tensor(device, {2}, DType::i64, "optimizer");
  for (const TensorPtr& each : {dy, x, hyper})
    from_host(*each, std::vector<double>(static_cast<size_t>(each->view.elements())).data(), each->view.elements());
  const PulseGrad op{dy->view, x->view, bits->view, pulses->view, hyper->view, rng->view};
  const size_t before = device.held();
  device.set_budget(before + (512 << 10), "--device-budget");
  CHECK_THAT(message_of([&] { device.run(op); }),
             containing("memory: scratch: 1048576 bytes more would exceed"));  // its tile in f32
  CHECK_THAT(message_of([&] { device.limits(); }), containing("memory: limits (to measure the device)"));
  device.set_budget(before + (2 << 20), "--device-budget");
  CHECK_NOTHROW(device.run(op));
  const size_t scratch = device.accounts().at("scratch").held;  // the product has some of its own
  CHECK(scratch >= 1 << 20);
  CHECK(device.held() == before + scratch);
  CHECK_NOTHROW(device.run(op));
  CHECK(device.held() == before + scratch);
}

TEST_CASE("of freed memory no more is kept than was in use at once") {
  Device device(make_cpu_backend(1));
  constexpr size_t kMiB = size_t{1} << 20, kLeast = 64 * kMiB;
  device.allocate(16 * kMiB, "workspace");
  CHECK(device.held() == 16 * kMiB);  // kept for reuse
  device.allocate(16 * kMiB, "workspace");
  CHECK(device.held() == 16 * kMiB);
  for (size_t i = 1; i <= 100; ++i) {  // none of these fits what is kept
    device.allocate(16 * kMiB + i * 4096, "workspace");
    REQUIRE(device.held() <= kLeast);
  }
  {
    const auto more = device.allocate(100 * kMiB, "workspace");
    REQUIRE(device.held() <= kLeast + 100 * kMiB);
  }
  CHECK(device.held() >= 100 * kMiB);  // as a step's memory is, for the next step
  for (size_t i = 1; i <= 100; ++i) device.allocate(16 * kMiB + i * 4096, "workspace");
  CHECK(device.held() <= 101 * kMiB);
}

TEST_CASE("a streamed file keeps to its limit, shows its bytes, and keeps what is used soonest") {
  const UnitFile file(10);
  Device device(make_cpu_backend(1));
  std::vector<StreamUnit> units;
  for (int i = 0; i < 10; ++i) units.push_back(file.unit(device, i));
  const TensorPtr weight = units[3].weights[0];
  size_t process = 0;
  {
    MappedStream probe(device, units, 0, "the machine", 8 << 20);
    process = probe.process();
    CHECK(probe.total() == 9 * kUnit);  // not the embedding, of which rows are read
  }
  std::vector<char> copied(kUnit);
  std::vector<StreamUnit> copies{units[0]};
  const std::shared_ptr<void> none(copied.data(), [](void*) {});
  copies[0].weights = {adopt_tensor(device, copied.data(), {static_cast<int64_t>(kUnit)}, DType::u8, "weights", none)};
  CHECK_THAT(message_of([&] { MappedStream(device, copies, 0, "", 8 << 20); }),
             containing("its weights were copied into memory"));
  copies.clear();
  CHECK_THAT(message_of([&] { MappedStream(device, units, 1 << 20, "--host-budget", 8 << 20); }),
             containing("memory: streamed weights: the largest unit of 2 MB"));
  MappedStream stream(device, units, process + 4 * kUnit + kUnit / 2, "--host-budget", 8 << 20);
  CHECK_THAT(message_of([&] { MappedStream(device, units, 0, "", 8 << 20); }), containing("unsupported"));
  CHECK_THAT(message_of([&] { set_requires_grad(weight, true); }), containing("unsupported"));
  const auto check = [&](int i, Pass pass) {
    stream.use(i, pass);
    CHECK(stream.resident() <= 4 * kUnit);
    CHECK(file.file->data()[static_cast<size_t>(i) * kUnit + 5] == static_cast<std::byte>(i));
  };
  for (int step = 0; step < 3; ++step) {
    for (int i = 0; i < 10; ++i) check(i, Pass::forward);
    const int64_t fetched = stream.figures().fetches;
    check(8, Pass::backward);  // of the way up, the last four are still there
    check(7, Pass::backward);
    CHECK(stream.figures().fetches <= fetched + 2);
    for (int i = 6; i > 0; --i) check(i, Pass::backward);
  }
  CHECK(stream.figures().bytes >= static_cast<double>(3 * 9 * kUnit));
  CHECK(device.held() <= device.budget());
  stream.close();
  set_requires_grad(weight, false);
  CHECK(device.budget() == 0);
  CHECK(device.held() == 0);
  device.set_budget(process + 64 * kUnit, "--device-budget");
  MappedStream(device, units, process + 8 * kUnit, "--host-budget", 8 << 20).close();
  CHECK(device.budget_option() == "--device-budget");
}

TEST_CASE("a spilled tensor lies in a file, also after its pages were dropped") {
  Device device(make_cpu_backend(1));
  const TensorPtr x = make_spilled(device, {3000, 2}, DType::f32, "weights", "w");
  from_host(*x, std::vector<double>(6000, 2.5).data(), 6000);
  drop_pages(x->view.data, x->view.bytes());
  CHECK(to_host(*x) == std::vector<double>(6000, 2.5));
  setenv("TMPDIR", "/no/such/folder", 1);
  CHECK_THAT(message_of([&] { make_spilled(device, {4}, DType::f32, "weights", "w"); }),
             containing("io: w: no file of 16 bytes for it in /no/such/folder"));
  unsetenv("TMPDIR");
}
