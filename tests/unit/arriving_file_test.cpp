#include "engine/blocks/arriving_file.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <thread>

#include "engine/blocks/partial_file.h"
#include "engine/packets/batches.h"
#include "engine/packets/packet_writer.h"
#include "kernels/error.h"
#include "tests/catch.h"

using namespace qeng;
namespace fs = std::filesystem;

namespace {

// A dataset of some blocks, and a folder that it is received in.
struct Remote {
  fs::path folder = fs::temp_directory_path() / ("qeng_arriving_" + std::to_string(::getpid()));
  std::string path = (folder / "data.qubgpu").string(), bytes;
  Manifest manifest;
  std::optional<PartialFile> file;

  Remote() {
    fs::remove_all(folder), fs::create_directories(folder);
    PacketWriter writer(path, {{"from", "a test"}});
    for (int32_t record = 0; record < 3000; ++record)
      writer.add(std::vector<int32_t>(static_cast<size_t>(200 + record % 300), record), {}, packet_source::chat);
    writer.finish();
    std::ifstream stream(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(stream), {});
    manifest = manifest_of(path);
    file.emplace(folder.string(), manifest);
  }
  ~Remote() { fs::remove_all(folder); }
  std::string part() const { return (folder / (manifest.hash + ".part")).string(); }
  std::string wanted() const {
    std::ifstream stream(folder / (manifest.hash + ".wanted"));
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  void put(uint64_t index) { file->put(index, std::string_view(bytes).substr(index * kFileBlock, kFileBlock)); }
};

std::vector<std::vector<int32_t>> epoch(const std::string& path) {
  Batches batches(PacketFile::open(path, arriving_file(path)), {.row_tokens = 512, .rows = 2, .seed = 3, .epochs = 1});
  std::vector<std::vector<int32_t>> all;
  for (Batch batch; batches.next(batch);) {
    CHECK(batch.damaged == 0);
    all.push_back(batch.tokens);
  }
  return all;
}

}  // namespace

TEST_CASE("batches of a dataset that is still coming are those of the whole, and say what they want next") {
  Remote remote;
  REQUIRE(remote.manifest.blocks.size() > 3);
  std::thread sender([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    for (uint64_t left = remote.manifest.blocks.size(); left-- > 0;) {  // the header and what is read first come last
      remote.put(left);
      remote.file->sync();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  const auto coming = epoch(remote.part());
  sender.join();
  CHECK(coming == epoch(remote.path));
  CHECK(remote.wanted().starts_with("0!\n"));
}

TEST_CASE("who waits for a file that nobody receives any more is told so") {
  Remote remote;
  const std::string part = remote.part();
  std::thread sender([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    remote.put(0);
    remote.file.reset();  // its last notes are read
  });
  const auto arrival = arriving_file(part);
  arrival->wait(0, 5000);
  sender.join();
  CHECK_THROWS_WITH(arrival->wait(kFileBlock - 1, kFileBlock + 1), containing("nobody receives them any more"));
  arrival->wait(kFileBlock - 1, kFileBlock);
  arrival->wait(7, 7);
  CHECK(!arriving_file(remote.path));
  CHECK(!arriving_file("/nowhere/x.part"));
}
