#include "engine/formats/gguf.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/formats/gguf_rows.h"
#include "engine/formats/gguf_types.h"
#include "engine/tokenizer/vocabulary.h"
#include "kernels/error.h"
#include "kernels/view_text.h"
#include "tests/catch.h"

using namespace qeng;
namespace fs = std::filesystem;

namespace {

struct GgufScratch {
  fs::path folder = fs::temp_directory_path() / ("qeng_gguf_" + std::to_string(::getpid()));
  GgufScratch() { fs::remove_all(folder), fs::create_directories(folder); }
  ~GgufScratch() { fs::remove_all(folder); }
  std::string operator/(const std::string& name) const { return (folder / name).string(); }
};

// A file by hand: whatever a test wants wrong in it.
class Bytes {
 public:
  template <class T>
  Bytes& put(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Bytes& str(const std::string& text) {
    put(uint64_t{text.size()});
    text_ += text;
    return *this;
  }
  Bytes& header(uint64_t tensors, uint64_t entries, uint32_t version = 3) {
    text_ += "GGUF";
    return put(version).put(tensors).put(entries);
  }
  Bytes& entry(const std::string& key, uint32_t value) { return str(key).put(uint32_t{4}).put(value); }
  Bytes& tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
    str(name).put(static_cast<uint32_t>(dims.size()));
    for (uint64_t dim : dims) put(dim);
    return put(type).put(offset);
  }
  Bytes& data(size_t bytes, size_t alignment = 32) {
    text_.resize((text_.size() + alignment - 1) / alignment * alignment + bytes);
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string refusal(const GgufScratch& scratch, const std::string& content) {
  const std::string path = scratch / "hostile.gguf";
  std::ofstream(path, std::ios::binary) << content;
  try {
    Gguf::open(path);
  } catch (const Error& error) {
    return error.what();
  }
  return "opened";
}

const std::string kGolden = QENG_SOURCE_DIR "/tests/golden/small.gguf";

}  // namespace

TEST_CASE("a GGUF file of the Python package reads back") {
  const auto file = Gguf::open(kGolden);
  CHECK(file->text("general.architecture") == "llama");
  CHECK(file->integer("test.u32") == 7);
  CHECK(file->integer("test.i64") == -(int64_t{1} << 60));
  CHECK(file->flag("test.bool") == true);
  CHECK(std::get<double>(file->find_entry("test.f32")->value) == 1.5);
  const MetadataArray* words = file->strings("test.strings");
  REQUIRE(words->count == 2);
  CHECK(words->strings[1] == "zwei");
  const MetadataArray* nested =
      std::get<std::shared_ptr<const MetadataArray>>(file->find_entry("test.nested")->value).get();
  REQUIRE(nested->arrays.size() == 2);
  CHECK(std::get<int64_t>(nested->arrays[1]->at(0)) == 3);
  CHECK_THROWS_AS(file->text("test.u32"), Error);

  const View rows = file->view("f32");
  CHECK(shape_text(rows) == "f32 [2, 3]");
  for (int i = 0; i < 6; ++i) CHECK(rows.as<float>()[i] == static_cast<float>(i) / 4);
  CHECK(shape_text(file->view("q8_0")) == "q8_0 [2, 64]");
  CHECK(file->find("i8")->type_name == "I8");
  CHECK_THROWS_AS(file->view("i8"), Error);
}

TEST_CASE("what GgufWriter writes Gguf reads") {
  const GgufScratch scratch;
  GgufMetadata metadata;
  metadata.add("a.u8", MetadataType::u8, 255.0);
  metadata.add("a.u64", MetadataType::u64, uint64_t{UINT64_MAX});
  metadata.add("a.words", MetadataType::string,
               std::vector<GgufMetadata::Scalar>{std::string("eins"), std::string("zwei")});
  metadata.add("a.flag", MetadataType::boolean, true);
  CHECK_THROWS_AS(metadata.add("a.flag", MetadataType::boolean, false), Error);
  CHECK_THROWS_AS(metadata.add("a.bad", MetadataType::u8, 256.0), Error);
  CHECK_THROWS_AS(metadata.add("a.half", MetadataType::i32, 0.5), Error);

  GgufMetadata good;
  good.add("a.u64", MetadataType::u64, uint64_t{UINT64_MAX});
  good.add("a.words", MetadataType::string, std::vector<GgufMetadata::Scalar>{std::string("eins")});
  const std::string path = scratch / "own.gguf";
  const float numbers[3] = {1, 2, 3};
  const std::string blocks(2 * 34, '\7');
  {
    GgufWriter writer(path, {{"x", DType::f32, {3}}, {"w", DType::q8_0, {2, 32}}}, good);
    CHECK_THROWS_AS(writer.write("w", blocks.data(), blocks.size()), Error);  // x is first
    writer.write("x", numbers, 4);
    writer.write("x", numbers + 1, 8);
    CHECK_THROWS_AS(writer.commit(), Error);
    writer.write("w", blocks.data(), blocks.size());
    CHECK(!fs::exists(path));
    writer.commit();
  }
  const auto file = Gguf::open(path);
  CHECK(std::get<uint64_t>(file->find_entry("a.u64")->value) == UINT64_MAX);
  CHECK(file->view("x").as<float>()[2] == 3);
  CHECK(std::memcmp(file->view("w").data, blocks.data(), blocks.size()) == 0);
  CHECK_THROWS_AS(GgufWriter(scratch / "no.gguf", {{"w", DType::q4_k, {2, 32}}}, good), Error);
  CHECK_THROWS_AS(GgufWriter(scratch / "no.gguf", {{"w", DType::f32, {2}}, {"w", DType::f32, {2}}}, good), Error);
  CHECK_THROWS_AS(GgufWriter(scratch / "no.gguf", {{"w", DType::int4, {2, 32}}}, good), Error);
}

TEST_CASE("a hundred thousand entries are added as fast as a vocabulary") {
  GgufMetadata metadata;
  for (uint64_t i = 0; i < 120'000; ++i)
    metadata.add("k." + std::to_string(i), MetadataType::u32, i);  // 40 s, were it quadratic
  CHECK(metadata.count() == 120'000);
  CHECK_THROWS_AS(metadata.add("k.7", MetadataType::u32, uint64_t{1}), Error);
}

TEST_CASE("hostile GGUF files are refused, saying what is wrong") {
  const GgufScratch scratch;
  const auto wrong = [&](const Bytes& bytes, const std::string& expected) {
    const std::string message = refusal(scratch, bytes.text());
    INFO(message);
    CHECK(message.find(expected) != std::string::npos);
  };
  wrong(Bytes(), "not a GGUF file");
  wrong(Bytes().header(0, 0, 1), "versions 2 and 3");
  wrong(Bytes().header(0, 0, 0x03000000), "big-endian");
  wrong(Bytes().header(uint64_t{1} << 60, 0), "more than its");
  wrong(Bytes().header(0, uint64_t{1} << 60), "more than its");
  wrong(Bytes().header(0, 1).put(UINT64_MAX).put(uint64_t{0}).put(uint64_t{0}), "cut short");
  wrong(Bytes().header(0, 1).str("k").put(uint32_t{13}).put(uint64_t{0}), "of type 13");
  wrong(Bytes().header(0, 1).str("k").put(uint32_t{9}).put(uint32_t{4}).put(uint64_t{1} << 62), "elements");
  Bytes nested;
  nested.header(0, 1).str("k").put(uint32_t{9});
  for (int i = 0; i < 8; ++i) nested.put(uint32_t{9}).put(uint64_t{1});
  nested.put(uint32_t{0}).put(uint64_t{0});
  wrong(nested, "nests arrays");
  wrong(Bytes().header(0, 2).entry("k", 1).entry("k", 1), "twice");
  wrong(Bytes().header(1, 1).entry("general.alignment", 24).tensor("t", {1}, 0, 0).data(32), "power of two");
  wrong(Bytes().header(1, 0).tensor("t", {1, 1, 1, 1, 1}, 0, 0).data(32), "5 dimensions");
  wrong(Bytes().header(1, 0).tensor("t", {1, 0}, 0, 0).data(32), "is 0");
  wrong(Bytes().header(1, 0).tensor("t", {uint64_t{1} << 40, uint64_t{1} << 40}, 0, 0).data(32), "overflow");
  wrong(Bytes().header(1, 0).tensor("t", {uint64_t{1} << 61}, 0, 0).data(32), "cut short");
  wrong(Bytes().header(1, 0).tensor("t", {4}, 0, 16).data(32), "multiple of 32");
  wrong(Bytes().header(1, 0).tensor("t", {4}, 0, 64).data(32), "beyond");
  wrong(Bytes().header(1, 0).tensor("t", {4}, 0, UINT64_MAX - 31).data(32), "beyond");
  wrong(Bytes().header(1, 0).tensor("t", {100}, 0, 0).data(32), "keeps 32 for it");
  wrong(Bytes().header(1, 0).tensor("t", {33}, 8, 0).data(64), "whole blocks of 32");
  wrong(Bytes().header(2, 0).tensor("a", {4}, 0, 0).tensor("a", {4}, 0, 32).data(64), "twice");
  wrong(Bytes().header(2, 0).tensor("a", {16}, 0, 0).tensor("b", {4}, 0, 32).data(64), "overlapped");
  wrong(Bytes().header(1, 0).tensor("t", {64}, 40, 0).data(256), "numbers the types differently");
  CHECK(refusal(scratch, Bytes().header(1, 0).tensor("t", {4}, 0, 0).data(32).text()) == "opened");
  CHECK(refusal(scratch, Bytes().header(1, 0).tensor("new", {4}, 4711, 0).data(32).text()) == "opened");
  try {
    Gguf::open(scratch / "hostile.gguf")->view("new");
    CHECK(false);
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("number 4711") != std::string::npos);
  }
}

TEST_CASE("type 42 is Q2_0 of 64 or of 128 by the bytes that a tensor has") {
  const GgufScratch scratch;
  const auto open = [&](size_t data, uint64_t columns) {
    std::ofstream(scratch / "q2.gguf", std::ios::binary)
        << Bytes().header(1, 0).tensor("t", {columns, 16}, 42, 0).data(data).text();
    return Gguf::open(scratch / "q2.gguf")->view("t").dtype;
  };
  CHECK(open(16 * 4 * 18, 256) == DType::q2_0);
  CHECK(open(16 * 2 * 34, 256) == DType::pq2_0);
  CHECK(open(16 * 18, 64) == DType::q2_0);
  CHECK_THROWS_AS(open(16 * 4 * 18 + 64, 256), Error);  // neither
  const auto ambiguous = Bytes().header(1, 0).tensor("t", {128, 1}, 42, 0).data(64);
  CHECK(refusal(scratch, ambiguous.text()).find("fit both") != std::string::npos);  // 36 and 34 bytes, both of 64
}

TEST_CASE("a GGUF file that is written in parts is read as one") {
  const GgufScratch scratch;
  GgufMetadata metadata;
  metadata.add("a.name", MetadataType::string, std::string("eins"));
  const std::vector<GgufSpec> specs = {
      {"a", DType::f32, {4}}, {"b", DType::f32, {20}}, {"c", DType::f32, {2}}, {"d", DType::f32, {3}}};
  const auto write = [&](GgufWriter& writer) {
    float value = 0;
    for (const GgufSpec& spec : specs)
      for (int64_t i = 0; i < spec.shape[0]; ++i, ++value) writer.write(spec.name, &value, sizeof value);
    writer.commit();
  };
  {
    GgufWriter writer(scratch / "m.gguf", specs, metadata, 24);  // b alone is more
    CHECK(writer.paths() == std::vector<std::string>{scratch / "m-00001-of-00003.gguf",
                                                     scratch / "m-00002-of-00003.gguf",
                                                     scratch / "m-00003-of-00003.gguf"});
    CHECK(!fs::exists(scratch / "m-00001-of-00003.gguf"));
    write(writer);
  }
  const auto file = Gguf::open(scratch / "m-00001-of-00003.gguf");
  CHECK(file->text("a.name") == "eins");
  float value = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    CHECK(file->tensors()[i].name == specs[i].name);
    CHECK(file->tensors()[i].file == (i < 2 ? static_cast<int>(i) : 2));
    for (int64_t j = 0; j < specs[i].shape[0]; ++j, ++value) CHECK(file->view(specs[i].name).as<float>()[j] == value);
  }
  CHECK_THROWS_WITH(GgufWriter(scratch / "m.gguf", specs, metadata, 24), containing("is there already"));
  GgufWriter whole(scratch / "whole.gguf", specs, metadata, 1 << 20);
  CHECK(whole.paths() == std::vector<std::string>{scratch / "whole.gguf"});
  write(whole);
  CHECK(Gguf::open(scratch / "whole.gguf")->tensors().size() == 4);
}

TEST_CASE("of a split GGUF file that the disk has no room for no part appears") {
  const GgufScratch scratch;
  const std::vector<float> values(1000);
  GgufWriter writer(scratch / "m.gguf", {{"a", DType::f32, {1000}}, {"b", DType::f32, {1}}}, GgufMetadata(), 4000);
  writer.write("a", values.data(), 4000);
  writer.write("b", values.data(), 4);
  struct rlimit before;
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small = {2000, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  CHECK_THROWS_WITH(writer.commit(), containing("m-00001-of-00002.gguf: cannot write"));
  ::setrlimit(RLIMIT_FSIZE, &before), std::signal(SIGXFSZ, handler);
  for (const std::string& path : writer.paths()) CHECK_FALSE(fs::exists(path));
}

TEST_CASE("the parts of a split GGUF file are one, and strangers among them are refused") {
  const GgufScratch scratch;
  const auto part = [&](const std::string& name, uint32_t no, uint32_t count, const char* tensor) {
    Bytes bytes;
    bytes.header(1, 3).entry("split.no", no).entry("split.count", count).entry("split.tensors.count", 2);
    std::ofstream(scratch / name, std::ios::binary) << bytes.tensor(tensor, {4}, 0, 0).data(32).text();
  };
  part("m-00001-of-00002.gguf", 0, 2, "a");
  part("m-00002-of-00002.gguf", 1, 2, "b");
  const auto file = Gguf::open(scratch / "m-00001-of-00002.gguf");
  CHECK(file->tensors().size() == 2);
  CHECK(file->find("b")->file == 1);
  CHECK_THROWS_AS(Gguf::open(scratch / "m-00002-of-00002.gguf"), Error);
  part("m-00002-of-00002.gguf", 0, 2, "b");
  CHECK_THROWS_AS(Gguf::open(scratch / "m-00001-of-00002.gguf"), Error);
  part("m-00002-of-00002.gguf", 1, 2, "a");
  CHECK_THROWS_AS(Gguf::open(scratch / "m-00001-of-00002.gguf"), Error);
  fs::remove(scratch / "m-00002-of-00002.gguf");
  CHECK_THROWS_AS(Gguf::open(scratch / "m-00001-of-00002.gguf"), Error);
}

TEST_CASE("rows in pairs and rows in halves are each other's way back") {
  // Two heads of four rows: halves 0 1 2 3 are pairs 0 2 1 3.
  int32_t halves[8], pairs[8], back[8];
  for (int i = 0; i < 8; ++i) halves[i] = i;
  rows_to_pairs(View(halves, DType::i32, {8}), 2, reinterpret_cast<std::byte*>(pairs));
  const int32_t expected[8] = {0, 2, 1, 3, 4, 6, 5, 7};
  CHECK(std::equal(pairs, pairs + 8, expected));
  rows_to_halves(View(pairs, DType::i32, {8, 1}), 2, reinterpret_cast<std::byte*>(back));
  CHECK(std::equal(back, back + 8, halves));
  CHECK_THROWS_AS(rows_to_pairs(View(halves, DType::i32, {8}), 3, reinterpret_cast<std::byte*>(pairs)), Error);
}

TEST_CASE("every type of GGUF that qeng reads has the sizes of its dtype") {
  for (const GgufTensorType& type : kGgufTensorTypes) {
    if (!type.dtype) continue;
    INFO(type.name);
    CHECK(dtype_info(*type.dtype).elements == type.elements);
    CHECK(dtype_info(*type.dtype).bytes == type.bytes);
  }
}
