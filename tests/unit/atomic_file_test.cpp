#include "engine/formats/atomic_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
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

struct Scratch {
  fs::path folder = fs::temp_directory_path() / ("qeng_atomic_" + std::to_string(::getpid()));
  Scratch() { fs::remove_all(folder), fs::create_directories(folder); }
  ~Scratch() { fs::remove_all(folder); }
  std::string operator/(const std::string& name) const { return (folder / name).string(); }
  ptrdiff_t entries() const { return std::distance(fs::directory_iterator(folder), fs::directory_iterator()); }
};

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("a file appears on commit, whole, and an abandoned one leaves nothing") {
  Scratch scratch;
  std::string path = scratch / "a.bin", big(3 << 20, 'x');
  {
    AtomicFile file(path);
    file.write("head");
    file.write(big);
    file.write("tail");
    CHECK(file.position() == big.size() + 8);
    CHECK(!fs::exists(path));
    file.commit();
    CHECK_THROWS_AS(file.write("more"), Error);
  }
  CHECK(read(path) == "head" + big + "tail");
  {
    AtomicFile abandoned(path);
    abandoned.write("new");
  }
  CHECK(read(path).size() == big.size() + 8);
  CHECK(scratch.entries() == 1);
  write_file_atomically(path, "short");
  CHECK(read(path) == "short");
  CHECK_THROWS_AS(AtomicFile(scratch / "no/folder/here"), Error);
  CHECK_THROWS_AS(AtomicFile(scratch.folder.string()), Error);
}

TEST_CASE("a folder is replaced as one, and an abandoned one leaves the old") {
  Scratch scratch;
  std::string path = scratch / "checkpoint";
  for (std::string content : {"one", "two"}) {
    AtomicFolder folder(path + "/");
    write_file_atomically(folder.file("weights"), content);
    if (content == "one") fs::create_directory(folder.file("nested"));
    folder.commit();
    CHECK(read(path + "/weights") == content);
    CHECK(fs::exists(path + "/nested") == (content == "one"));
    CHECK(scratch.entries() == 1);
  }
  {
    AtomicFolder abandoned(path);
    write_file_atomically(abandoned.file("weights"), "three");
  }
  CHECK(read(path + "/weights") == "two");
  CHECK(scratch.entries() == 1);
  write_file_atomically(scratch / "plain", "");
  CHECK_THROWS_AS(AtomicFolder(scratch / "plain"), Error);
}

TEST_CASE("a folder caught between two renames is put back") {
  Scratch scratch;
  std::string path = scratch / "checkpoint";
  fs::create_directory(path + ".tmp-replaced");
  write_file_atomically(path + ".tmp-replaced/weights", "kept");
  recover_folder(path);
  CHECK(read(path + "/weights") == "kept");
  CHECK(!fs::exists(path + ".tmp-replaced"));
  recover_folder(scratch / "nothing");
  CHECK(scratch.entries() == 1);
}

TEST_CASE("a folder of the user's beside the target stays what it is") {
  Scratch scratch;
  const std::string path = scratch / "mine";
  for (const char* ending : {".old", ".tmp"}) {
    fs::create_directory(path + ending);
    write_file_atomically(path + ending + "/precious", "only copy");
  }
  recover_folder(path);
  CHECK(!fs::exists(path));
  for (int round = 0; round < 2; ++round) {
    AtomicFolder folder(path);
    write_file_atomically(folder.file("weights"), "new");
    folder.commit();
  }
  CHECK(read(path + ".old/precious") == "only copy");
  CHECK(read(path + ".tmp/precious") == "only copy");
  CHECK(scratch.entries() == 3);
}

TEST_CASE("a link stays and what it points to is written, and what is no file is refused") {
  Scratch scratch;
  write_file_atomically(scratch / "real", "old");
  fs::create_directory(scratch / "folder");
  fs::create_symlink("real", scratch / "link");
  fs::create_symlink("link", scratch / "link of link");
  fs::create_symlink(scratch / "not there yet", scratch / "dangling");
  fs::create_symlink("circle", scratch / "circle");
  fs::create_symlink("folder", scratch / "link of folder");
  write_file_atomically(scratch / "link of link", "new");
  write_file_atomically(scratch / "dangling", "first");
  {
    AtomicFolder folder(scratch / "link of folder/");
    write_file_atomically(folder.file("weights"), "new");
    folder.commit();
  }
  CHECK(read(scratch / "real") == "new");
  CHECK(read(scratch / "not there yet") == "first");
  CHECK(read(scratch / "folder/weights") == "new");
  for (const char* name : {"link", "link of link", "dangling", "link of folder"}) CHECK(fs::is_symlink(scratch / name));
  CHECK_THROWS_WITH(AtomicFile(scratch / "circle"), containing("symbolic links in a row"));
  REQUIRE(::mkfifo((scratch / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(AtomicFile(scratch / "pipe"), containing("a file would replace"));
  CHECK_THROWS_WITH(AtomicFile("/dev/null"), containing("a file would replace"));
}

TEST_CASE("a kill at any moment leaves a readable checkpoint") {
  Scratch scratch;
  std::string path = scratch / "checkpoint";
  auto save = [&](char letter) {
    AtomicFolder folder(path);
    for (const char* name : {"/a", "/b"}) write_file_atomically(folder.folder() + name, std::string(2000, letter));
    folder.commit();
  };
  save('0');
  for (int round = 0; round < 40; ++round) {
    pid_t child = ::fork();
    if (child == 0)
      for (char letter = 'a';; letter = letter == 'z' ? 'a' : static_cast<char>(letter + 1)) save(letter);
    ::usleep(static_cast<useconds_t>(500 + 370 * round));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    recover_folder(path);
    std::string a = read(path + "/a"), b = read(path + "/b");
    REQUIRE(a.size() == 2000);
    REQUIRE(a == b);
    REQUIRE(a == std::string(2000, a[0]));
  }
}

TEST_CASE("what killed processes left is deleted, and nothing else") {
  Scratch scratch;
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile file(scratch / "a.bin");
    AtomicFolder folder(scratch / "run");
    write_file_atomically(folder.file("part"), "half");
    ::raise(SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  const std::string gone = std::to_string(child);
  AtomicFile alive(scratch / "b.bin");
  alive.write("still being written");
  // As a process of another container would leave it: its number is not one of ours, but it holds the lock.
  const std::string elsewhere = "c.bin.tmp-" + gone + "-77";
  const int fd = ::open((scratch / elsewhere).c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
  REQUIRE(::flock(fd, LOCK_EX | LOCK_NB) == 0);
  const std::string left = "a.tmp-" + gone;
  for (const std::string& name :
       std::vector<std::string>{"a.tmp", "a.tmp-", "a.tmp-x-1", left, left + "-", left + "-1x", ".tmp-" + gone + "-1"})
    std::ofstream(scratch / name) << "the user's";
  const auto before = scratch.entries();
  const std::vector<std::string> removed = remove_strays(scratch.folder.string());
  REQUIRE(removed.size() == 2);
  CHECK(removed[0].rfind("a.bin.tmp-" + gone + "-", 0) == 0);
  CHECK(removed[1].rfind("run.tmp-" + gone + "-", 0) == 0);
  CHECK(scratch.entries() == before - 2);
  alive.commit();
  CHECK(read(scratch / "b.bin") == "still being written");
  ::close(fd);
  CHECK(remove_strays(scratch.folder.string()).size() == 1);
  CHECK(remove_strays(scratch / "none").empty());
}
