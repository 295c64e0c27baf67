#include "engine/formats/mapped_file.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "kernels/error.h"
#include "tests/catch.h"

using namespace qeng;
namespace fs = std::filesystem;

namespace {
std::string message_of(const std::string& path) {
  try {
    MappedFile::open(path);
  } catch (const Error& error) {
    return error.code + ": " + error.what();
  }
  return "opened";
}
}  // namespace

TEST_CASE("a mapped file shows the file's bytes for as long as it is held") {
  fs::path path = fs::temp_directory_path() / ("qeng_mapped_" + std::to_string(::getpid()));
  std::ofstream(path) << "hello";
  auto file = MappedFile::open(path.string());
  CHECK(file->text() == "hello");
  CHECK(file->size() == 5);
  fs::remove(path);
  CHECK(file->text() == "hello");
  std::ofstream(path).flush();
  CHECK(MappedFile::open(path.string())->size() == 0);
  fs::remove(path);
}

TEST_CASE("a loaded file has the same bytes at the same address, even when the file goes, and a replaced one is refused") {
  const std::string path = (fs::temp_directory_path() / ("qeng_loaded_" + std::to_string(::getpid()))).string();
  std::string bytes(20'000'001, '\0');  // some large pages, and part of a small one
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 24);
  std::ofstream(path) << bytes;
  const auto file = MappedFile::open(path), other = MappedFile::open(path);
  const std::byte* before = file->data();
  CHECK(load_files({file}, true));
  CHECK(file->data() == before);
  REQUIRE(::truncate(path.c_str(), 5) == 0);
  CHECK(file->text() == bytes);
  CHECK_THROWS_AS(other->load(), Error);
  fs::remove(path);
  std::ofstream(path) << bytes;
  CHECK_THROWS_AS(other->load(), Error);  // of the same size, but another file
  fs::remove(path);
}

TEST_CASE("what cannot be mapped is named, with what to check") {
  CHECK(message_of("/nowhere/at/all.bin")
            .find("io: /nowhere/at/all.bin: no such file: the folder /nowhere/at does not exist") == 0);
  CHECK(message_of((fs::temp_directory_path() / "qeng_missing").string()).find("check the name") != std::string::npos);
  CHECK(message_of(fs::temp_directory_path().string()).find("is a folder") != std::string::npos);
  CHECK(message_of("/dev/null").find("not a regular file") != std::string::npos);
}

TEST_CASE("a watched file that shrinks reads as zeros and is an error when asked, and others are not") {
  const std::string folder = (fs::temp_directory_path() / ("qeng_shrinks_" + std::to_string(::getpid()))).string();
  const std::string path = folder + ".a", other = folder + ".b";
  std::ofstream(path) << std::string(100000, 'x');
  std::ofstream(other) << std::string(100000, 'y');
  for (int round = 0; round < 3; ++round) {  // places of the list are used again
    std::ofstream(path) << std::string(100000, 'x');
    const auto file = MappedFile::open(path, OnShrink::zeros), whole = MappedFile::open(other, OnShrink::zeros);
    REQUIRE(::truncate(path.c_str(), 5000) == 0);
    CHECK(file->text()[0] == 'x');
    CHECK(file->text()[99999] == 0);
    CHECK(file->text()[50000] == 0);
    CHECK_THROWS_AS(file->require_whole(), Error);
    CHECK(whole->text()[99999] == 'y');
    CHECK_NOTHROW(whole->require_whole());
  }
  fs::remove(path), fs::remove(other);
}
