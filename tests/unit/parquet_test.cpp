// Parquet files of pyarrow as the rows that pyarrow reads (tests/golden/parquet_golden.py).
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/formats/atomic_file.h"
#include "engine/parquet/parquet_source.h"
#include "engine/parquet/unpack.h"
#include "kernels/error.h"
#include "tests/catch.h"

using namespace qeng;
using nlohmann::json;

namespace {

const std::string kFolder = QENG_SOURCE_DIR "/tests/golden/parquet/";

std::string text_of(const std::string& path) {
  const auto source = open_parquet(path);
  std::string text;
  char some[777];
  while (const size_t n = source->read(some, sizeof some)) text.append(some, n);
  return text;
}

std::vector<json> rows_of(const std::string& text) {
  std::vector<json> rows;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    rows.push_back(json::parse(text.substr(at, end - at)));
    at = end + 1;
  }
  return rows;
}

std::string file_of(const std::string& name) {
  std::ifstream file(kFolder + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("a Parquet file's rows are those that pyarrow reads, whatever its pages and encodings") {
  for (const auto& [name, rows] : {std::pair("chats", "chats"),
                                   {"everything_v1", "everything"},
                                   {"everything_v2", "everything"},
                                   {"everything_brotli", "everything"},
                                   {"everything_lz4", "everything"},
                                   {"lz4_hadoop", "lz4_hadoop"}}) {
    CAPTURE(name);
    const std::vector<json> got = rows_of(text_of(kFolder + name + ".parquet")),
                            want = rows_of(file_of(rows + std::string(".jsonl")));
    REQUIRE(got.size() == want.size());
    for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == want[i]);
  }
}

TEST_CASE("text of Parquet that is no UTF-8 keeps its bytes, and bytes that are no text become no text") {
  CHECK(text_of(kFolder + "not_utf8.parquet") ==
        "{\"text\": \"K\xe4se\", \"blob\": {\"bytes\": 2}, \"map\": [[{\"bytes\": 1}, 1]]}\n"
        "{\"text\": \"a\", \"blob\": \"a\", \"map\": []}\n");
}

TEST_CASE("a damaged Parquet file is refused by name, and whatever its bytes are, nothing else happens") {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("qeng_" + std::to_string(::getpid()) + ".parquet")).string();
  const std::string whole = file_of("everything_v2.parquet");
  const auto read = [&](const std::string& bytes) {
    write_file_atomically(path, bytes);
    return text_of(path);
  };
  CHECK_THROWS_WITH(read(whole.substr(0, whole.size() - 1)), containing(path) && containing("does not end with PAR1"));
  CHECK_THROWS_WITH(read("PAR1\xff\xff\xff\x7fPAR1"), containing("longer than the file"));
  std::string flipped = whole;
  flipped[60] = static_cast<char>(flipped[60] ^ 1);
  CHECK_THROWS_WITH(read(flipped), containing("checksum"));
  for (const char* name : {"everything_v2.parquet", "everything_brotli.parquet", "everything_lz4.parquet"}) {
    CAPTURE(name);
    const std::string sound = file_of(name);
    size_t refused = 0;
    for (size_t at = 4; at < sound.size(); at += 13) {
      std::string damaged = sound;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
      try {
        read(damaged);
      } catch (const Error&) {
        ++refused;
      }
    }
    CHECK(refused > 100);
  }
  std::filesystem::remove(path);
}

TEST_CASE("an empty Parquet page has no values, also after a page with more than it counts") {
  const std::string corpus = QENG_SOURCE_DIR "/tests/fuzz/corpus/parquet/";
  for (const char* name : {"split_texts_of_an_empty_page", "values_of_the_page_before_an_empty_one"})
    CHECK_THROWS_WITH(text_of(corpus + name), containing("a page without its values"));
}

TEST_CASE("a Parquet page of LZ4 is one block or Hadoop's frames, and unpacks to its size or is refused") {
  using namespace std::string_literals;
  const std::string block = "\x50hello", frame = "\0\0\0\5\0\0\0\6"s + block;  // five characters as they are
  CHECK(unpack_page(7, block, 5) == "hello");
  CHECK(unpack_page(5, block, 5) == "hello");
  CHECK(unpack_page(5, frame + frame, 10) == "hellohello");
  for (const auto& [codec, page, size] : {std::tuple(7, block, 4),
                                          {7, block, 6},
                                          {7, frame, 5},
                                          {5, frame, 6},
                                          {5, frame + frame, 5},
                                          {5, frame + "x", 5},
                                          {5, frame.substr(0, 10), 5},
                                          {5, "\xff\xff\xff\xff\xff\xff\xff\xff"s, 5},
                                          {4, block, 5},
                                          {4, ""s, 5},
                                          {7, ""s, 5}}) {
    CAPTURE(codec, size);
    CHECK_THROWS_WITH(unpack_page(codec, page, static_cast<size_t>(size)), containing("does not unpack"));
  }
  CHECK_THROWS_WITH(unpack_page(3, block, 5), containing("LZO") && containing("Brotli"));
}

TEST_CASE("rows of the files of a campaign", "[.]") {  // of tests/campaigns/parquet.py
  for (const auto& entry : std::filesystem::directory_iterator(std::getenv("QENG_CAMPAIGN"))) {
    if (entry.path().extension() != ".parquet") continue;
    std::string rows;
    try {
      rows = text_of(entry.path());
    } catch (const Error& error) {
      rows = std::string("error: ") + error.what();
    }
    std::ofstream(std::filesystem::path(entry.path()).replace_extension("rows"), std::ios::binary) << rows;
  }
}
