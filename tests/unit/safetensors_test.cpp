#include "engine/formats/safetensors.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>

#include "engine/formats/safetensors_dtype.h"
#include "kernels/error.h"
#include "kernels/view_text.h"
#include "tests/catch.h"

using namespace qeng;
namespace fs = std::filesystem;

namespace {

struct Scratch {
  fs::path folder = fs::temp_directory_path() / ("qeng_safetensors_" + std::to_string(::getpid()));
  Scratch() { fs::remove_all(folder), fs::create_directories(folder); }
  ~Scratch() { fs::remove_all(folder); }
  std::string operator/(const std::string& name) const { return (folder / name).string(); }
};

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::string& path, const std::string& content) { std::ofstream(path, std::ios::binary) << content; }

std::string container(const std::string& header, size_t data_bytes, uint64_t length = 0) {
  if (length == 0) length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, '\1');
}

std::string message_of(const std::string& path) {
  try {
    SafeTensors::open(path);
  } catch (const Error& error) {
    return error.code + ": " + error.what();
  }
  return "opened";
}

const std::string kGolden = QENG_SOURCE_DIR "/tests/golden/small.safetensors";

}  // namespace

TEST_CASE("a file of the Python package reads back") {
  auto file = SafeTensors::open(kGolden);
  CHECK(file->tensors().size() == 7);
  CHECK(file->metadata().at("format") == "pt");
  View weight = file->view("weight");
  CHECK(shape_text(weight) == "f32 [2, 3]");
  for (int i = 0; i < 6; ++i) CHECK(weight.as<float>()[i] == i / 4.f);
  View half = file->view("half");
  CHECK(half.dtype == DType::bf16);
  CHECK(half.as<uint16_t>()[0] == 0x3F80);  // 1.0
  CHECK(half.as<uint16_t>()[1] == 0xC020);  // -2.5
  CHECK(file->view("ids").as<int64_t>()[1] == -2);
  CHECK(file->view("bytes").as<uint8_t>()[2] == 255);
  CHECK(file->view("empty").elements() == 0);
  CHECK(file->view("scalar").rank == 0);
  CHECK(file->view("scalar").as<int32_t>()[0] == 7);
  CHECK(file->get("flag").type_name == "BOOL");
  CHECK_THROWS_WITH(file->view("flag"), containing("BOOL"));
  CHECK_THROWS_WITH(file->view("layer.weight"), containing("nearest name is weight"));
}

TEST_CASE("what is written reads back, aligned, in one file and in shards") {
  Scratch scratch;
  std::vector<float> a(35);
  std::iota(a.begin(), a.end(), 0.f);
  std::vector<uint8_t> b{9, 8, 7};
  std::vector<int64_t> c{1ll << 40, -1};
  std::vector<NamedView> tensors = {{"b", View(b.data(), DType::u8, {3})},
                                    {"a", View(a.data(), DType::f32, {5, 7})},
                                    {"none", View(nullptr, DType::f32, {0, 2})},
                                    {"c", View(c.data(), DType::i64, {2})}};
  save_safetensors(scratch / "one.safetensors", tensors);
  uint64_t header = 0;
  std::memcpy(&header, read(scratch / "one.safetensors").data(), 8);
  CHECK((8 + header) % 16 == 0);

  std::vector<TensorSpec> specs = {{"b", DType::u8, {3}}, {"a", DType::f32, {5, 7}}, {"c", DType::i64, {2}}};
  ShardedWriter shards(scratch.folder.string(), specs, 100, {});
  for (const TensorSpec& spec : shards.order()) {
    const void* data = spec.name == "a"   ? static_cast<void*>(a.data())
                       : spec.name == "b" ? static_cast<void*>(b.data())
                                          : c.data();
    size_t half = spec.bytes() / 2;  // in two pieces
    shards.write(spec.name, data, half);
    shards.write(spec.name, static_cast<const char*>(data) + half, spec.bytes() - half);
  }
  CHECK(!fs::exists(scratch / "model.safetensors.index.json"));
  shards.commit();
  CHECK(fs::exists(scratch / "model-00003-of-00003.safetensors"));

  for (const std::string& path :
       {scratch / "one.safetensors", scratch.folder.string(), scratch / "model.safetensors.index.json"}) {
    auto file = SafeTensors::open(path);
    CHECK(std::memcmp(file->view("a").data, a.data(), 140) == 0);
    CHECK(std::memcmp(file->view("b").data, b.data(), 3) == 0);
    CHECK(std::memcmp(file->view("c").data, c.data(), 16) == 0);
    for (const StoredTensor& tensor : file->tensors())
      CHECK(reinterpret_cast<uintptr_t>(tensor.data) % dtype_size(*tensor.dtype) == 0);
  }
}

TEST_CASE("a tensor of any rank and type of the format is written as its bytes") {
  Scratch scratch;
  const std::vector<uint8_t> filters(96, 3), flags{1, 0, 1};
  const std::vector<float> w{1, 2};
  SafeTensorsWriter writer(scratch / "one.safetensors",
                           {{"flags", DType::f32, {3}, find_safetensors_type("BOOL")},
                            {"w", DType::f32, {2}},
                            {"filters", DType::f32, {2, 3, 1, 2, 4}, find_safetensors_type("BF16")}});
  for (const TensorSpec& spec : writer.order()) {
    if (spec.name == "w") writer.write("w", w.data(), 8);
    if (spec.name == "filters") writer.write("filters", filters.data(), 96);
    if (spec.name == "flags") writer.write("flags", flags.data(), 3);
  }
  writer.commit();
  const auto file = SafeTensors::open(scratch / "one.safetensors");
  CHECK(file->view("w").as<float>()[1] == 2);
  CHECK(file->get("filters").shape == std::vector<int64_t>{2, 3, 1, 2, 4});
  CHECK(file->get("filters").type_name == "BF16");
  CHECK(std::memcmp(file->get("filters").data, filters.data(), 96) == 0);
  CHECK(file->get("flags").type_name == "BOOL");
  CHECK(std::memcmp(file->get("flags").data, flags.data(), 3) == 0);
  CHECK_THROWS_WITH(file->view("filters"), containing("5 dimensions"));
}

TEST_CASE("a save over an earlier one is what opens, and leaves no file of that one") {
  Scratch scratch;
  const auto save = [&](float value, size_t max_shard_bytes) {
    ShardedWriter writer(scratch.folder.string(), {{"a", DType::f32, {2}}, {"b", DType::f32, {2}}}, max_shard_bytes);
    const float data[2] = {value, value};
    for (const TensorSpec& spec : writer.order()) writer.write(spec.name, data, sizeof data);
    writer.commit();
  };
  write(scratch / "config.json", "{}");
  write(scratch / "model-of-mine.safetensors", "not a shard");
  float value = 0;
  for (size_t shard_bytes : {8, 100, 100, 8, 8}) {
    save(++value, shard_bytes);
    const auto file = SafeTensors::open(scratch.folder.string());
    CHECK(file->view("a").as<float>()[1] == value);
    CHECK(file->view("b").as<float>()[1] == value);
    const auto files = std::distance(fs::directory_iterator(scratch.folder), fs::directory_iterator());
    CHECK(files == (shard_bytes == 8 ? 5 : 3));
  }
  CHECK(fs::exists(scratch / "model-of-mine.safetensors"));
}

TEST_CASE("the writer refuses data that does not match what was declared, and leaves no file") {
  Scratch scratch;
  std::string path = scratch / "x.safetensors";
  float data[4] = {};
  {
    SafeTensorsWriter writer(path, {{"a", DType::f32, {2}}, {"b", DType::f32, {2}}});
    CHECK_THROWS_WITH(writer.write("b", data, 8), containing("where a is due"));
    CHECK_THROWS_WITH(writer.write("a", data, 12), containing("takes 8 bytes"));
    writer.write("a", data, 8);
    CHECK_THROWS_WITH(writer.commit(), containing("tensor b has 0 of its 8 bytes"));
  }
  CHECK(fs::is_empty(scratch.folder));
  CHECK_THROWS_AS(SafeTensorsWriter(path, {{"a", DType::f32, {2}}, {"a", DType::f32, {2}}}), Error);
  CHECK_THROWS_AS(SafeTensorsWriter(path, {{"a", DType::f32, {-2}}}), Error);
  CHECK_THROWS_AS(SafeTensorsWriter(path, {{"a", DType::f32, {INT64_MAX, 4}}}), Error);
}

TEST_CASE("every kind of damage to a header is named") {
  Scratch scratch;
  auto open = [&](const std::string& content) {
    write(scratch / "x.safetensors", content);
    return message_of(scratch / "x.safetensors");
  };
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  CHECK(open(container("{" + a + "}", 8)) == "opened");
  CHECK(open(container("{}", 0)) == "opened");
  CHECK_THAT(open("short"), containing("too short"));
  CHECK_THAT(open(container("{" + a + "}", 8, 1000)), containing("cut short"));
  CHECK_THAT(open(container("{" + a + "}", 8, ~0ull)), containing("cut short"));
  CHECK_THAT(open(container("[1]", 0)), containing("does not begin with '{'"));
  CHECK_THAT(open(container("{" + a, 8)), containing("not JSON"));
  CHECK_THAT(open(container("{" + a + "," + a + "}", 8)), containing("\"a\" twice"));
  CHECK_THAT(open(container("{" + a + "}", 7)), containing("cut short"));
  CHECK_THAT(open(container("{" + a + "}", 9)), containing("belong to none"));
  CHECK_THAT(open(container(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})", 16)), containing("a hole"));
  CHECK_THAT(open(container("{" + a + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12)),
             containing("an overlap"));
  CHECK_THAT(open(container(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8)),
             containing("takes 12 bytes"));
  CHECK_THAT(open(container(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8)), containing("backwards"));
  CHECK_THAT(open(container(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0)),
             containing("overflows"));
  CHECK_THAT(open(container(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8)),
             containing("whole number"));
  CHECK_THAT(open(container(R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8)),
             containing("whole number"));
  CHECK_THAT(open(container(R"({"a":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}})", 8)), containing("F99"));
  CHECK_THAT(open(container(R"({"a":{"shape":[2],"data_offsets":[0,8]}})", 8)), containing("no \"dtype\""));
  CHECK_THAT(open(container(R"({"__metadata__":{"n":1}})", 0)), containing("not a string"));
  const std::string deep = std::string(2'000'000, '[') + std::string(2'000'000, ']');  // json::dump calls itself
  for (const char* field : {"dtype", "shape"})
    CHECK_THAT(open(container("{\"a\":{\"" + std::string(field) + "\":" + deep + "}}", 0)),
               containing("nested over 64"));
  CHECK_THAT(message_of(scratch / "missing.safetensors"), containing("no such file"));
  CHECK_THAT(message_of(scratch.folder.string()), containing("holds neither"));
}

TEST_CASE("an index that lies is refused") {
  Scratch scratch;
  fs::copy_file(kGolden, scratch / "one.safetensors");
  fs::copy_file(kGolden, scratch / "two.safetensors");
  auto open = [&](const std::string& index) {
    write(scratch / "model.safetensors.index.json", index);
    return message_of(scratch.folder.string());
  };
  CHECK(open(R"({"weight_map": {"weight": "one.safetensors"}})") == "opened");
  CHECK_THAT(open(R"({"weight_map": {"weight": "../one.safetensors"}})"), containing("same folder"));
  CHECK_THAT(open(R"({"weight_map": {"nothing": "one.safetensors"}})"), containing("does not hold it"));
  CHECK_THAT(open(R"({"weight_map": {"weight": "three.safetensors"}})"), containing("no such file"));
  CHECK_THAT(open(R"({"weight_map": {"weight": "one.safetensors", "ids": "two.safetensors"}})"),
             containing("is also in"));
  CHECK_THAT(open("{}"), containing("weight_map"));
  const std::string deep = std::string(2'000'000, '[') + std::string(2'000'000, ']');
  CHECK_THAT(open("{\"weight_map\": {\"weight\": " + deep + "}}"), containing("nested over 64"));
}

TEST_CASE("random damage gives an Error or a file within bounds, never a crash") {
  Scratch scratch;
  std::string path = scratch / "x.safetensors", original = read(kGolden);
  size_t header_end = 8 + static_cast<uint8_t>(original[0]) + 256u * static_cast<uint8_t>(original[1]);
  std::mt19937 random(7);
  int opened = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string damaged = original;
    for (unsigned flips = 1 + random() % 3; flips > 0; --flips)
      damaged[random() % header_end] =
          random() % 2 ? static_cast<char>(random()) : "0123456789[]{},:\"-"[random() % 18];
    if (round % 8 == 0) damaged.resize(random() % (damaged.size() + 1));
    write(path, damaged);
    try {
      auto file = SafeTensors::open(path);
      ++opened;
      unsigned sum = 0;
      for (const StoredTensor& tensor :
           file->tensors())  // reading past the end would be caught by the sanitizer or a fault
        for (size_t i = 0; i < tensor.bytes; ++i) sum += static_cast<unsigned>(tensor.data[i]);
      CHECK(sum > 0);
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find(path) != std::string::npos);
    }
  }
  CHECK(opened > 0);
}
