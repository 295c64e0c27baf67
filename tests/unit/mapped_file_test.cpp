#include "engine/formats/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "engine/formats/atomic_file.h"
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

TEST_CASE(
    "a loaded file has the same bytes at the same address, even when the file goes, and a replaced one is refused") {
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

namespace {
// Runs `work` in a process of its own; its status as waitpid gives it, and what it wrote to standard error.
template <class Work>
std::pair<int, std::string> in_child(Work work) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    work();
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  char part[4096];
  for (ssize_t got; (got = ::read(ends[0], part, sizeof(part))) > 0;) text.append(part, static_cast<size_t>(got));
  ::close(ends[0]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return {status, text};
}
}  // namespace

TEST_CASE("a mapped file that shrinks ends the process by name, where it is read and where it is written from") {
  const std::string path = (fs::temp_directory_path() / ("qeng_ends_" + std::to_string(::getpid()))).string();
  const auto shrunk = [&](auto use) {
    std::ofstream(path) << std::string(8'000'000, 'x');
    const auto file = MappedFile::open(path);
    return in_child([&] {
      if (::truncate(path.c_str(), 5000) == 0) use(*file);
    });
  };
  const auto named = [&](const std::pair<int, std::string>& end) {
    CHECK(WIFEXITED(end.first));
    CHECK(WEXITSTATUS(end.first) == 1);
    CHECK(end.second.find("qeng: " + path + ": the file became shorter while it was open") != std::string::npos);
  };
  named(shrunk([](const MappedFile& file) { ::_exit(file.text()[500000] == 'x' ? 2 : 3); }));
  named(shrunk([&](const MappedFile& file) { write_file_atomically(path + ".copy", file.text()); }));
  for (const auto& entry : fs::directory_iterator(fs::temp_directory_path()))
    if (entry.path().string().starts_with(path)) fs::remove(entry.path());
}

TEST_CASE("a bus error in other memory is left to the system") {
  const std::string path = (fs::temp_directory_path() / ("qeng_other_" + std::to_string(::getpid()))).string();
  const std::string other = path + ".mapped by somebody else";
  std::ofstream(path) << "x";
  std::ofstream(other) << std::string(100000, 'x');
  const auto file = MappedFile::open(path);  // which installs the handler
  const auto end = in_child([&] {
    const int fd = ::open(other.c_str(), O_RDONLY);
    const void* memory = ::mmap(nullptr, 100000, PROT_READ, MAP_PRIVATE, fd, 0);
    if (memory == MAP_FAILED || ::truncate(other.c_str(), 5000) != 0) return;
    ::_exit(static_cast<const volatile char*>(memory)[50000] == 'x' ? 0 : 0);
  });
  CHECK(end.first != 0);
  CHECK(end.second.find("became shorter") == std::string::npos);
  fs::remove(path), fs::remove(other);
}
