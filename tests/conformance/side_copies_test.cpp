// Copies beside the operations and recordings, on devices that have both.
#include <cstring>

#include "tests/catch.h"
#include "tests/conformance/runner.h"

using namespace qeng;
using namespace qeng::conformance;

namespace {

constexpr size_t kBytes = size_t{1} << 20;

// A place on a device with copies to it: from pinned memory of a byte's value, and to `seen`, which the operations copy
// it to.
struct Place {
  explicit Place(Backend& on) : backend(on), copies(on.side_copies()) {
    memory = static_cast<char*>(backend.allocate(kBytes)), seen = static_cast<char*>(backend.allocate(kBytes));
    for (char value : {1, 2}) {
      pinned[value - 1] = copies->pin(kBytes);
      std::memset(pinned[value - 1], value, kBytes);
    }
    look();
    recording = backend.record([&] {
      copies->release(0);
      bring(1);
      copies->await(0);
      look();
    });
  }
  ~Place() {
    backend.synchronize();
    recording.reset();
    for (void* values : pinned) copies->unpin(values);
    backend.release(memory, kBytes), backend.release(seen, kBytes);
  }
  void bring(int value) { copies->copy(0, memory, pinned[value - 1], kBytes); }
  void look() {
    const auto bytes = static_cast<int64_t>(kBytes);
    backend.run(Copy{.x = View(memory, DType::u8, {bytes}), .y = View(seen, DType::u8, {bytes})});
  }
  // The value that all of it has, -1: there is more than one.
  int value_of(const char* device) {
    std::vector<char> bytes(kBytes);
    backend.download(bytes.data(), device, kBytes);
    return bytes == std::vector<char>(kBytes, bytes[0]) ? bytes[0] : -1;
  }
  Backend& backend;
  std::unique_ptr<SideCopies> copies;
  char *memory = nullptr, *seen = nullptr;
  void* pinned[2] = {};
  std::unique_ptr<Recording> recording;
};

template <class F>
void on_each_device(F test) {
  for (Named& target : backends())
    if (target.backend->side_copies()) {
      INFO(target.name);
      test(*target.backend);
    }
}

}  // namespace

TEST_CASE("a recording's copies come after those that are under way when it is replayed") {
  on_each_device([](Backend& backend) {
    Place place(backend);
    for (int round = 0; round < 20; ++round) {
      place.copies->release(0);
      place.bring(2);
      place.recording->replay();
      CHECK(place.value_of(place.seen) == 1);
      CHECK(place.value_of(place.memory) == 1);
    }
  });
}

TEST_CASE("what is copied may be written just before, in a recording as well") {
  on_each_device([](Backend& backend) {
    Place place(backend);
    const char* problem = nullptr;
    char value = 2;
    SideCopies::Fill fill{[&] { return std::memset(place.pinned[0], ++value, kBytes), problem; }};
    place.copies->release(0);
    place.copies->copy(0, place.memory, place.pinned[0], kBytes, &fill);
    place.copies->await(0);
    place.look();
    CHECK(place.value_of(place.seen) == 3);
    const std::unique_ptr<Recording> recording = backend.record([&] {
      place.copies->release(0);
      place.copies->copy(0, place.memory, place.pinned[0], kBytes, &fill);
      place.copies->await(0);
      place.look();
    });
    for (char wanted : {4, 5, 6}) {
      recording->replay();
      CHECK(place.value_of(place.seen) == wanted);
    }
    problem = "the file is torn";
    recording->replay();
    CHECK_THROWS_WITH(backend.synchronize(), containing("the file is torn"));
    problem = nullptr;
    recording->replay();
    CHECK(place.value_of(place.seen) == 8);
  });
}

TEST_CASE("copies of a recording take time when it is replayed, and none before") {
  on_each_device([](Backend& backend) {
    for (int round = 0; round < 5; ++round) {
      Place place(backend);
      SideCopies::Times times = place.copies->times();
      CHECK((times.copying == 0 && times.waiting == 0));
      place.recording->replay();
      times = place.copies->times();
      CHECK(times.copying > 0);
    }
  });
}
