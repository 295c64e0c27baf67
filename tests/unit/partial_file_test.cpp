#include "engine/blocks/partial_file.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "kernels/error.h"
#include "tests/catch.h"

using namespace qeng;
namespace fs = std::filesystem;

namespace {

constexpr uint64_t kBlocks = 70;  // more than one group that is synced together

// A file of 70 blocks, the last one short, and a folder that it is received in.
struct Transfer {
  fs::path folder = fs::temp_directory_path() / ("qeng_partial_" + std::to_string(::getpid()));
  std::string bytes;
  Manifest manifest;
  Transfer() {
    fs::remove_all(folder), fs::create_directories(folder);
    bytes.resize(kBlocks * kFileBlock - 5);
    for (uint64_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>((i * 2654435761U ^ i >> 20) >> 13);
    manifest.size = bytes.size();
    for (uint64_t i = 0; i < kBlocks; ++i) manifest.blocks.push_back(sha256(block(i)));
    manifest.hash = hex(sha256(manifest.text()));
  }
  ~Transfer() { fs::remove_all(folder); }
  std::string_view block(uint64_t i) const { return std::string_view(bytes).substr(i * kFileBlock, kFileBlock); }
  std::string file(const std::string& ending) const { return (folder / (manifest.hash + ending)).string(); }
  std::string to() const { return (folder / "whole").string(); }
  PartialFile open(bool verify = false) const { return PartialFile(folder.string(), manifest, verify); }
  void put(PartialFile& file, uint64_t first, uint64_t end) const {
    for (uint64_t i = first; i < end; ++i) file.put(i, block(i));
  }
};

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void flip(const std::string& path, std::streamoff at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const int byte = file.get();
  file.seekp(at).put(static_cast<char>(byte ^ 4));
}

}  // namespace

TEST_CASE("blocks in any order make the file, which appears when all are there") {
  const Transfer transfer;
  {
    PartialFile file = transfer.open();
    CHECK(file.missing(0, transfer.manifest.size - 1).size() == kBlocks);
    CHECK(fs::file_size(file.path()) == transfer.manifest.size);
    transfer.put(file, 50, kBlocks);
    transfer.put(file, 1, 50);
    CHECK(file.missing(0, UINT64_MAX) == std::vector<uint64_t>{0});
    CHECK(file.missing(kFileBlock, UINT64_MAX).empty());
    CHECK(file.missing(5, 4).empty());
    CHECK(!file.put(3, transfer.block(3)));
    CHECK_THROWS_WITH(file.finish(transfer.to()), containing("1 of its 70 blocks are missing"));
    CHECK(read(file.path()).substr(kFileBlock) == transfer.bytes.substr(kFileBlock));
    transfer.put(file, 0, 1);
    file.finish(transfer.to());
    CHECK_THROWS_WITH(file.put(0, transfer.block(0)), containing("put after finish or close"));
  }
  CHECK(read(transfer.to()) == transfer.bytes);
  CHECK(std::distance(fs::directory_iterator(transfer.folder), {}) == 1);
}

TEST_CASE("a wrong block is refused by its number, and nothing of it is written") {
  const Transfer transfer;
  PartialFile file = transfer.open();
  transfer.put(file, 0, 3);
  std::string wrong(transfer.block(7));
  wrong[4711] ^= 1;
  CHECK_THROWS_WITH(file.put(7, wrong), containing("block 7 is not what the manifest says"));
  CHECK_THROWS_WITH(file.put(8, transfer.block(7)), containing("block 8 is not what"));
  CHECK_THROWS_WITH(file.put(7, transfer.block(7).substr(1)), containing("has 1048575 bytes, expected 1048576"));
  CHECK_THROWS_WITH(file.put(kBlocks, transfer.block(7)), containing("block 70 of 70"));
  CHECK_THROWS_WITH(file.put(kBlocks - 1, transfer.block(7)), containing("expected 1048571"));
  CHECK(file.here() == 3);
  CHECK(read(file.path()).substr(3 * kFileBlock) == std::string(transfer.bytes.size() - 3 * kFileBlock, '\0'));
}

TEST_CASE("one object at a time receives a file") {
  const Transfer transfer;
  {
    PartialFile file = transfer.open();
    CHECK_THROWS_WITH(transfer.open(), containing("another process is receiving it"));
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        transfer.open();
      } catch (const Error& error) {
        ::_exit(error.code == "busy" ? 7 : 1);
      }
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(WEXITSTATUS(status) == 7);
    transfer.put(file, 0, 10);
    file.close();
    CHECK(transfer.open().here() == 10);
  }
  CHECK(transfer.open().here() == 10);
}

TEST_CASE("a kill at any moment loses some blocks and keeps no wrong one") {
  const Transfer transfer;
  uint64_t least = 0;
  for (int round = 0; round < 20 && least < kBlocks; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      PartialFile file = transfer.open();
      for (const uint64_t i : file.missing(0, UINT64_MAX)) {
        file.put(i, transfer.block(i));
        if (i % 8 == 0) file.sync();
      }
      ::_exit(0);  // without the destructor
    }
    ::usleep(static_cast<useconds_t>(1000 + 700 * round));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    PartialFile file = transfer.open();
    REQUIRE(file.here() >= least);
    least = file.here();
    const std::string there = read(file.path());
    for (uint64_t i = 0; i < kBlocks; ++i)
      if (file.has(i)) REQUIRE(std::string_view(there).substr(i * kFileBlock, kFileBlock) == transfer.block(i));
  }
  PartialFile file = transfer.open();
  for (const uint64_t i : file.missing(0, UINT64_MAX)) file.put(i, transfer.block(i));
  file.finish(transfer.to());
  CHECK(read(transfer.to()) == transfer.bytes);
}

TEST_CASE("where notes are damaged or cut, blocks are verified again; where the file is gone, none is believed") {
  const Transfer transfer;
  const auto receive = [&] {
    PartialFile file = transfer.open();
    transfer.put(file, 0, 20);
  };
  receive();
  flip(transfer.file(".noted"), 44);
  CHECK(transfer.open().here() == 20);
  flip(transfer.file(".part"), 5 * kFileBlock + 3);
  CHECK(transfer.open().here() == 20);  // noted blocks are believed
  fs::resize_file(transfer.file(".noted"), 43);
  CHECK(transfer.open().missing(0, 20 * kFileBlock - 1) == std::vector<uint64_t>{5});
  CHECK(transfer.open().here() == 19);
  receive();
  flip(transfer.file(".part"), 7 * kFileBlock);
  CHECK(transfer.open(true).missing(0, 20 * kFileBlock - 1) == std::vector<uint64_t>{7});
  fs::resize_file(transfer.file(".part"), 19);
  CHECK(transfer.open().here() == 0);
  receive();
  fs::remove(transfer.file(".part"));
  CHECK(transfer.open().here() == 0);
  receive();
  fs::remove(transfer.file(".noted"));
  CHECK(transfer.open().here() == 0);
  fs::remove(transfer.file(".part"));
  fs::create_symlink(transfer.to(), transfer.file(".part"));
  CHECK_THROWS_WITH(transfer.open(), containing("cannot be created"));
  CHECK(!fs::exists(transfer.to()));
}

TEST_CASE("what has the name when the file is whole is not replaced") {
  const Transfer transfer;
  {
    PartialFile file = transfer.open();
    transfer.put(file, 0, kBlocks);
    std::ofstream(transfer.to()) << "precious";
    CHECK_THROWS_WITH(file.finish(transfer.to()), containing("is there by now, and nothing is replaced"));
  }
  CHECK(read(transfer.to()) == "precious");
  fs::remove(transfer.to());
  transfer.open().finish(transfer.to());
  CHECK(read(transfer.to()) == transfer.bytes);
}

TEST_CASE("a full disk is said, and what has come is kept") {
  const Transfer transfer;
  transfer.open();
  CHECK(fs::file_size(transfer.file(".noted")) == 49);  // they need no more room later: 70 bits, a hash and 8 bytes
  const pid_t child = ::fork();
  if (child == 0) {  // a limit on the size of files stands in for the disk: the same call fails, for another reason
    PartialFile file = transfer.open();
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{10 * kFileBlock + 100, 10 * kFileBlock + 100};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    transfer.put(file, 0, 10);
    try {
      transfer.put(file, 10, 11);
    } catch (const Error& error) {
      file.sync();
      ::_exit(error.code == "io" && file.here() == 10 ? 7 : 1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WEXITSTATUS(status) == 7);
  CHECK(transfer.open().here() == 10);
}

TEST_CASE("an empty file is whole from the start") {
  const Transfer transfer;
  Manifest manifest;
  manifest.hash = hex(sha256(manifest.text()));
  PartialFile file(transfer.folder.string(), manifest);
  CHECK(file.complete());
  file.finish(transfer.to());
  CHECK(fs::file_size(transfer.to()) == 0);
}
