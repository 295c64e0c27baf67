#include "engine/blocks/manifest.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "kernels/error.h"
#include "tests/catch.h"

using namespace qeng;
namespace fs = std::filesystem;

namespace {

struct Scratch {
  fs::path folder = fs::temp_directory_path() / ("qeng_manifest_" + std::to_string(::getpid()));
  Scratch() { fs::remove_all(folder), fs::create_directories(folder); }
  ~Scratch() { fs::remove_all(folder); }
  std::string operator/(const std::string& name) const { return (folder / name).string(); }
};

void write(const std::string& path, const std::string& bytes, int seconds_ago = 0) {
  std::ofstream(path, std::ios::binary) << bytes;
  fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::seconds(seconds_ago));
}

std::string pattern(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 2654435761U >> 13);
  return text;
}

std::string block(const std::string& path, uint64_t index) {
  std::string bytes;
  read_block(path, index, [&](size_t size) { return bytes.resize(size), bytes.data(); });
  return bytes;
}

Manifest parse(const std::string& text) { return parse_manifest(text, hex(sha256(text))); }

}  // namespace

// Figures of sha256sum over `printf abc`, and over the text that the header describes.
TEST_CASE("a manifest is the text that manifest.h describes, and its hash is that of the text") {
  Scratch scratch;
  write(scratch / "abc", "abc");
  const Manifest manifest = manifest_of(scratch / "abc");
  const std::string text =
      "qeng blocks 1\nsize 3\nblock 1048576\n"
      "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\n";
  CHECK(manifest.text() == text);
  CHECK(manifest.hash == "4ebe4beb74902096a32a9a2907f9cc588ef6dc52f9727ceed0c86b572c6dc2e5");
  write(scratch / "none", "");
  CHECK(manifest_of(scratch / "none").text() == "qeng blocks 1\nsize 0\nblock 1048576\n");
  CHECK(parse(manifest_of(scratch / "none").text()).blocks.empty());
}

TEST_CASE("each block of a file has its own hash, the last one that of what is left") {
  Scratch scratch;
  const std::string bytes = pattern((3 << 20) + 17);
  write(scratch / "a", bytes);
  const Manifest manifest = parse(manifest_of(scratch / "a").text());
  REQUIRE(manifest.blocks.size() == 4);
  CHECK(manifest.bytes(0) == 1 << 20);
  CHECK(manifest.bytes(3) == 17);
  for (size_t i = 0; i < 4; ++i) {
    CHECK(manifest.blocks[i] == sha256(bytes.substr(i << 20, 1 << 20)));
    CHECK(block(scratch / "a", i) == bytes.substr(i << 20, 1 << 20));
  }
  CHECK_THROWS_WITH(block(scratch / "a", 4), containing("block 4 of a file of"));
  CHECK_THROWS_WITH(block(scratch / "a", uint64_t{1} << 63), containing("of a file of"));
  CHECK_THROWS_WITH(manifest_of(scratch / "b"), containing("cannot be opened"));
  CHECK_THROWS_WITH(manifest_of(scratch.folder.string()), containing("is no regular file"));
  REQUIRE(::mkfifo((scratch / "pipe").c_str(), 0600) == 0);  // nobody writes to it
  CHECK_THROWS_WITH(manifest_of(scratch / "pipe"), containing("is no regular file"));
}

TEST_CASE("a kept manifest is found while the file is the same, and no longer") {
  Scratch scratch;
  const std::string path = scratch / "a", cache = scratch / "cache";
  std::string bytes = pattern(9 << 20);
  int read = 0;
  const auto hash = [&] { return manifest_of(path, cache, [&](uint64_t, uint64_t) { ++read; }).hash; };
  write(path, bytes, 60);
  const std::string first = hash();
  CHECK(read == 1);
  CHECK(hash() == first);
  CHECK(read == 1);
  const auto when = fs::last_write_time(path);
  bytes[5 << 20] ^= 1;
  std::ofstream(path, std::ios::binary) << bytes;
  fs::last_write_time(path, when);  // the same size, inode and time of writing
  CHECK(hash() != first);
  CHECK(read == 2);
  const fs::path entry = fs::directory_iterator(cache)->path();
  std::fstream(entry, std::ios::in | std::ios::out | std::ios::binary).seekp(200).put('x');  // damaged
  CHECK(hash() != first);
  CHECK(read == 3);
  write(path, bytes);  // now: it may be written again within one tick of the clock
  CHECK(hash() != first);
  CHECK(hash() != first);
  CHECK(read == 5);
  write(path, bytes, 60);  // a cache that cannot be written: this process remembers
  for (int i = 0; i < 2; ++i) manifest_of(path, path + "/none", [&](uint64_t, uint64_t) { ++read; });
  CHECK(read == 6);
}

TEST_CASE("a manifest that others sent is refused unless it is one and has the hash that was asked for") {
  Scratch scratch;
  write(scratch / "a", pattern((1 << 20) + 1));
  const std::string text = manifest_of(scratch / "a").text();
  CHECK(parse(text).text() == text);
  CHECK_THROWS_WITH(parse_manifest(text, std::string(64, '0')), containing("lies"));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return changed;
  };
  CHECK_THROWS_WITH(parse(""), containing("does not begin"));
  CHECK_THROWS_WITH(parse(with("blocks 1", "blocks 2")), containing("does not begin"));
  for (const char* size : {"size -1", "size 01048577", "size 1e6", "size 18446744073709551616", "size"})
    CHECK_THROWS_WITH(parse(with("size 1048577", size)), containing("has no size"));
  CHECK_THROWS_WITH(parse(with("size 1048577", "size 18446744073709551615")), containing("2 TiB"));
  CHECK_THROWS_WITH(parse(with("size 1048577", "size 2097153")), containing("as many blocks"));
  CHECK_THROWS_WITH(parse(with("1048576", "1048575")), containing("another size"));
  CHECK_THROWS_WITH(parse(text + "\n"), containing("as many blocks"));
  CHECK_THROWS_WITH(parse(text.substr(0, text.size() - 1)), containing("as many blocks"));
  std::string upper = text;
  for (char& c : upper) c = static_cast<char>(c >= 'a' && c <= 'f' && &c - upper.data() > 60 ? c - 32 : c);
  CHECK_THROWS_WITH(parse(upper), containing("no SHA-256"));
}

TEST_CASE("the list of a folder is sorted, and one that leads out of the folder is refused") {
  const std::string hash(64, 'a');
  const std::string text = folder_text({{"b/c", hash, 7}, {"a b", hash, 0}});
  CHECK(text == "qeng folder 1\n" + hash + " 0 a b\n" + hash + " 7 b/c\n");
  const auto files = parse_folder(text, hex(sha256(text)));
  REQUIRE(files.size() == 2);
  CHECK((files[1].path == "b/c" && files[1].size == 7 && files[1].hash == hash));
  const auto refused = [&](const std::string& lines, const char* why) {
    const std::string all = "qeng folder 1\n" + lines;
    CHECK_THROWS_WITH(parse_folder(all, hex(sha256(all))), containing(why));
  };
  for (const char* path : {"/etc/passwd", "..", "a/../../b", "a//b", "./a", "a/", "a\\b", "a\tb"})
    refused(hash + " 1 " + path + "\n", "a peer names a file");
  refused(hash + " 1 \n", "a peer names a file");
  refused(hash + " 1 b\n" + hash + " 1 a\n", "not in the order");
  refused(hash + " 1 a\n" + hash + " 1 a\n", "not in the order");
  refused(hash + " 1 a\n" + hash + " 1 a!\n" + hash + " 1 a/b\n", "as a file and a folder");
  for (const std::string& line :
       {hash + " x a", hash + " 9999999999999999 a", hash + " 1", hash.substr(1) + " 1 a b", hash + "1 1 a"})
    refused(line + "\n", "is not: hash, size, path");
  refused(hash + " 1 a", "is not: hash, size, path");
  CHECK_THROWS_WITH(parse_folder(text, hash), containing("lies"));
}
