// Each way in which a stored tensor becomes one on a device, for a device that is the host and one that has memory of
// its own.
#include "engine/weights/weights.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>

#include "engine/formats/gguf.h"
#include "engine/formats/safetensors.h"
#include "kernels/error.h"
#include "kernels/math/bf16.h"
#include "tests/catch.h"

using namespace qeng;
namespace fs = std::filesystem;

namespace {

struct WeightsScratch {
  fs::path folder = fs::temp_directory_path() / ("qeng_weights_" + std::to_string(::getpid()));
  WeightsScratch() { fs::remove_all(folder), fs::create_directories(folder); }
  ~WeightsScratch() { fs::remove_all(folder); }
  std::string operator/(const std::string& name) const { return (folder / name).string(); }
};

std::string refusal(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.code + ": " + error.what();
  }
  return "nothing thrown";
}

// The host as a device with memory of its own.
class OwnMemory : public Backend {
 public:
  std::string name() const override { return "own"; }
  std::string description() const override { return "own"; }
  bool host_memory() const override { return false; }
  void run(const Op& op) override { host_->run(op); }
  void synchronize() override {}
  void* allocate(size_t bytes) override { return host_->allocate(bytes); }
  void release(void* memory, size_t bytes) override { host_->release(memory, bytes); }
  void upload(void* device, const void* host, size_t bytes) override { std::memcpy(device, host, bytes); }
  void download(void* host, const void* device, size_t bytes) override { std::memcpy(host, device, bytes); }
  Memory memory() override { return host_->memory(); }
  double limit(Limit which) override { return host_->limit(which); }

 private:
  std::unique_ptr<Backend> host_ = make_cpu_backend(1);
};

std::vector<std::byte> pattern(size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 7 + i / 251);
  return data;
}

// w: 8 rows of f32 that count up; v: a vector; h: f16; t: two groups of rows of blocks; n: 64 codes of a format that is
// decoded.
constexpr int64_t kRows = 8, kColumns = 4;
void write_gguf(const std::string& path) {
  std::vector<float> numbers(kRows * kColumns);
  std::iota(numbers.begin(), numbers.end(), 1.f);
  const std::vector<std::byte> blocks = pattern(64 * 66), halves(kRows * kColumns * 2, std::byte{0x3c});
  GgufMetadata notes;
  notes.add("a.count", MetadataType::u32, 3.0);
  GgufWriter writer(path,
                    {{"w", DType::f32, {kRows, kColumns}},
                     {"v", DType::f32, {kColumns}},
                     {"h", DType::f16, {kRows, kColumns}},
                     {"t", DType::tq2_0, {64, 256}},
                     {"u", DType::tq2_0, {64, 256}}},
                    notes);
  writer.write("w", numbers.data(), numbers.size() * 4);
  writer.write("v", numbers.data(), kColumns * 4);
  writer.write("h", halves.data(), halves.size());
  writer.write("t", blocks.data(), blocks.size());
  writer.write("u", blocks.data(), blocks.size());
  writer.commit();
}

// What a reader has found: n, [4, 2] of nibbles that lie in two tensors.
class Nibbles : public WeightFile {
 public:
  Nibbles() {
    path_ = "nibbles";
    low_.data = data_, high_.data = data_ + 2, low_.bytes = high_.bytes = 2;
    StoredTensor n{"n", "NIBBLES"};
    n.shape = {4, 2}, n.bytes = sizeof data_, n.parts = {&low_, &high_};
    n.decoder = {"nibbles", DType::f16, false, [this](std::byte* out) {
                   for (int i = 0; i < 8; ++i) {
                     const auto byte = static_cast<int>((i < 4 ? low_ : high_).data[i % 4 / 2]);
                     reinterpret_cast<f16*>(out)[i] = to_f16(static_cast<float>(byte >> (i % 2 * 4) & 15));
                   }
                 }};
    StoredTensor again = n, other = n;
    again.name = "again", other.name = "other", other.parts = {&low_, &low_};
    for (StoredTensor* each : {&n, &again, &other}) add(*each);
  }
  std::string readable_types() const override { return "NIBBLES"; }

 private:
  std::byte data_[4] = {std::byte{0x10}, std::byte{0x32}, std::byte{0x54}, std::byte{0x76}};
  StoredTensor low_{"low", "U8"}, high_{"high", "U8"};
};

const std::byte* stored(const Weights& weights, const std::string& name) { return weights.file().get(name).data; }
bool same_bytes(const Tensor& x, const std::byte* bytes) {
  return std::memcmp(x.view.data, bytes, x.view.bytes()) == 0;
}

// Rows of w in Hugging Face's order, for 2 heads of 4 rows: even ones of a head before odd ones.
constexpr int kHalves[kRows] = {0, 2, 1, 3, 4, 6, 5, 7};
bool in_halves(const std::vector<double>& values) {
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t c = 0; c < kColumns; ++c)
      if (values[static_cast<size_t>(r * kColumns + c)] != static_cast<double>(kHalves[r] * kColumns + c + 1))
        return false;
  return true;
}

WeightOptions with(const std::function<void(WeightOptions&)>& set) {
  WeightOptions options;
  set(options);
  return options;
}
const WeightOptions kCopy = with([](WeightOptions& o) { o.copy = true; });
const WeightOptions kHeads = with([](WeightOptions& o) { o.heads = 2; });
const WeightOptions kBf16 = with([](WeightOptions& o) { o.dtype = DType::bf16; });
const WeightOptions kInterleave = with([](WeightOptions& o) { o.interleave = true; });
const WeightOptions kStream = with([](WeightOptions& o) { o.stream = true; });
WeightOptions streamed(WeightOptions options) {
  options.stream = true;
  return options;
}

}  // namespace

TEST_CASE("weights: in place where dtype and order are the file's, else a copy of the same values") {
  const WeightsScratch scratch;
  write_gguf(scratch / "a.gguf");
  Device device(make_cpu_backend(1));
  Weights weights(open_weights(scratch / "a.gguf"));
  const TensorPtr w = weights.tensor(device, "w");
  CHECK(w->view.data == stored(weights, "w"));
  CHECK(w->buffer->owner);
  CHECK(weights.tensor(device, "t")->view.data == stored(weights, "t"));
  CHECK(weights.tensor(device, "v", kStream)->view.data == stored(weights, "v"));

  const TensorPtr copy = weights.tensor(device, "w", kCopy);
  CHECK(copy->view.data != w->view.data);
  CHECK(same_bytes(*copy, stored(weights, "w")));
  const TensorPtr converted = weights.tensor(device, "w", kBf16);
  for (int i = 0; i < kRows * kColumns; ++i)
    REQUIRE(converted->view.as<bf16>()[i].bits == to_bf16(static_cast<float>(i + 1)).bits);
  CHECK(weights.tensor(device, "h", kBf16)->view.dtype == DType::bf16);
  CHECK(in_halves(to_host(*weights.tensor(device, "w", kHeads))));
  CHECK(in_halves(
      to_host(*weights.tensor(device, "w", with([](WeightOptions& o) { o.heads = 2, o.dtype = DType::bf16; })))));

  weights.close();
  CHECK(w->view.as<float>()[5] == 6);  // its file is still mapped
  CHECK(refusal([&] { weights.tensor(device, "w"); }) == "closed: these weights are closed");
}

TEST_CASE("weights: rows are interleaved where nobody sees them yet, and read as the same numbers") {
  const WeightsScratch scratch;
  write_gguf(scratch / "a.gguf");
  Device device(make_cpu_backend(1));
  Weights weights(open_weights(scratch / "a.gguf")), plain(open_weights(scratch / "a.gguf"));
  const TensorPtr before = plain.tensor(device, "t");
  const TensorPtr t = weights.tensor(device, "t", kInterleave);
  CHECK(t->view.data == stored(weights, "t"));
  CHECK(t->view.interleaved);
  CHECK(t->view.dtype == DType::tq2_0);
  CHECK(to_host(*t) == to_host(*before));
  CHECK(weights.tensor(device, "t")->view.interleaved);
  const TensorPtr copy = weights.tensor(device, "t", kCopy);
  CHECK_FALSE(copy->view.interleaved);
  CHECK(same_bytes(*copy, stored(plain, "t")));
  CHECK_FALSE(plain.tensor(device, "t", kInterleave)->view.interleaved);  // `before` shows it
  CHECK_FALSE(weights.tensor(device, "w", kInterleave)->view.interleaved);

  auto heads = kInterleave;
  heads.heads = 2;
  CHECK_THAT(refusal([&] { weights.tensor(device, "t", heads); }),
             containing("value: ") && containing("lies interleaved already"));
  CHECK_THAT(refusal([&] { weights.load(device, false); }), containing("load the file before"));
  const TensorPtr reordered = weights.tensor(device, "u", heads);  // a copy, interleaved itself
  CHECK(reordered->view.interleaved);
  CHECK(to_host(*reordered) == to_host(*plain.tensor(device, "u", kHeads)));
}

TEST_CASE("weights: interleaved rows stay what they are in parts, and come in order in copies and bytes") {
  const WeightsScratch scratch;
  write_gguf(scratch / "a.gguf");
  Device device(make_cpu_backend(1)), own(std::make_unique<OwnMemory>());
  Weights weights(open_weights(scratch / "a.gguf")), plain(open_weights(scratch / "a.gguf"));
  const TensorPtr t = weights.tensor(device, "t", kInterleave), in_order = plain.tensor(device, "t");
  const std::byte* file = stored(plain, "t");
  const size_t half = t->view.bytes() / 2;
  REQUIRE(t->view.interleaved);
  CHECK_FALSE(same_bytes(*t, file));

  const TensorPtr shaped = reshape_view(t, {64, 256}), rows = row_range(t, 32, 32);
  CHECK(shaped->view.interleaved);
  CHECK(to_host(*shaped) == to_host(*in_order));
  CHECK(rows->view.interleaved);
  CHECK(to_host(*rows) == to_host(*row_range(in_order, 32, 32)));
  CHECK_THAT(refusal([&] { reshape_view(t, {32, 512}); }), containing("dtype: ") && containing("lie in groups"));
  CHECK_THAT(refusal([&] { row_range(t, 0, 16); }), containing("dtype: ") && containing("groups of 32 rows"));

  std::vector<std::byte> bytes(t->view.bytes());
  read_bytes(*t, bytes.data());
  CHECK(std::memcmp(bytes.data(), file, bytes.size()) == 0);
  for (Device* each : {&device, &own}) {
    const TensorPtr copy = make_tensor(*each, {64, 256}, DType::tq2_0);
    copy_into(*copy, *t);
    CHECK_FALSE(copy->view.interleaved);
    CHECK(same_bytes(*copy, file));
    const TensorPtr decoded = make_tensor(*each, {64, 256}, DType::f32);
    copy_into(*decoded, *t);
    CHECK(to_host(*decoded) == to_host(*in_order));
  }
  CHECK_FALSE(make_like(*t)->view.interleaved);

  copy_into(*rows, *row_range(in_order, 0, 32));  // the first group's rows into the second's
  CHECK(rows->view.interleaved);
  read_bytes(*t, bytes.data());
  CHECK(std::memcmp(bytes.data(), file, half) == 0);
  CHECK(std::memcmp(bytes.data() + half, file, half) == 0);
  copy_into(*t, *shaped);
  CHECK(to_host(*rows) == to_host(*row_range(in_order, 0, 32)));
  device.run(Fill{rows->view, 0});
  CHECK(to_host(*rows) == std::vector<double>(32 * 256));
  CHECK(to_host(*row_range(t, 0, 32)) == to_host(*row_range(in_order, 0, 32)));
}

TEST_CASE("weights: what is decoded, what lies unaligned, and what is not read") {
  const WeightsScratch scratch;
  Device device(make_cpu_backend(1)), own(std::make_unique<OwnMemory>());
  Weights nibbles(std::make_shared<Nibbles>());
  for (Device* each : {&device, &own}) {
    CHECK(to_host(*nibbles.tensor(*each, "n")) == std::vector<double>{0, 1, 2, 3, 4, 5, 6, 7});
    CHECK(nibbles.tensor(*each, "n")->view.dtype == DType::f16);
    CHECK(to_host(*nibbles.tensor(*each, "n", kBf16)) == std::vector<double>{0, 1, 2, 3, 4, 5, 6, 7});
    auto options = kHeads;
    options.dtype = DType::f32;
    options.heads = 1;
    CHECK(to_host(*nibbles.tensor(*each, "n", options)) == std::vector<double>{0, 1, 4, 5, 2, 3, 6, 7});
  }

  const WeightFile& file_of_nibbles = nibbles.file();
  CHECK(same_data(file_of_nibbles.get("n"), file_of_nibbles.get("again")));
  CHECK_FALSE(same_data(file_of_nibbles.get("n"), file_of_nibbles.get("other")));

  std::string header =
      R"({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "b": {"dtype": "F32", "shape": [2], )"
      R"("data_offsets": [1, 9]}, "c": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [9, 10]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  const float values[2] = {1.5f, -2};
  std::ofstream file(scratch / "odd.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), 8) << header << 'x';
  file.write(reinterpret_cast<const char*>(values), 8) << 'y';
  file.close();
  Weights odd(open_weights(scratch / "odd.safetensors"));
  const TensorPtr b = odd.tensor(device, "b");
  CHECK(b->view.data != stored(odd, "b"));
  CHECK(to_host(*b) == std::vector<double>{1.5, -2});
  CHECK(odd.tensor(device, "a")->view.data == stored(odd, "a"));
  CHECK_THAT(refusal([&] { odd.tensor(device, "c"); }),
             containing("dtype: ") && containing("is of type F8_E4M3, which qeng does not read; it reads F32, BF16"));
  CHECK_THAT(refusal([&] { odd.tensor(device, "b", with([](WeightOptions& o) { o.shape = Shape{3}; })); }),
             containing("shape: ") && containing("tensor b is [2], expected [3]"));
  CHECK_THAT(refusal([&] { odd.tensor(device, "x.b"); }), containing("has no tensor x.b; the nearest name is b"));
}

TEST_CASE("weights: a stream's matrices lie in files, and wait in the host's memory for another device") {
  const WeightsScratch scratch;
  write_gguf(scratch / "a.gguf");
  Device host(make_cpu_backend(1)), own(std::make_unique<OwnMemory>());
  Weights weights(open_weights(scratch / "a.gguf")), nibbles(std::make_shared<Nibbles>());
  CHECK(weights.tensor(host, "w", kStream)->view.data == stored(weights, "w"));
  for (const WeightOptions& options : {kHeads, kBf16, kCopy}) {
    const TensorPtr spilled = weights.tensor(host, "w", streamed(options));
    CHECK(spilled->buffer->spilled);
    CHECK(to_host(*spilled) == to_host(*weights.tensor(host, "w", options)));
  }
  CHECK(nibbles.tensor(host, "n", kStream)->buffer->spilled);

  const TensorPtr waits = weights.tensor(own, "w", kStream);
  CHECK(waits->view.data == stored(weights, "w"));
  CHECK(&waits->device() == &own);
  const TensorPtr ordered = weights.tensor(own, "w", streamed(kHeads));
  CHECK(ordered->buffer->home == ordered->view.data);
  CHECK(in_halves(to_host(*ordered)));
  CHECK(weights.tensor(own, "v", kStream)->view.data !=
        stored(weights, "v"));  // no matrix: it goes to the device at once
  CHECK_THAT(refusal([&] { weights.tensor(own, "w", streamed(kBf16)); }),
             containing("unsupported: ") && containing("streamed as they are stored"));
  const TensorPtr decoded = nibbles.tensor(own, "n", kStream);
  CHECK(decoded->buffer->home == decoded->view.data);
  CHECK(to_host(*decoded) == to_host(*nibbles.tensor(host, "n")));
  CHECK_THAT(refusal([&] { nibbles.tensor(own, "n", streamed(kBf16)); }),
             containing("tensor n is nibbles of f16 in the file, not bf16"));

  const TensorPtr copied = weights.tensor(own, "w", kInterleave);
  CHECK(copied->view.data != stored(weights, "w"));
  CHECK(same_bytes(*copied, stored(weights, "w")));
  CHECK_FALSE(weights.tensor(own, "t", kInterleave)->view.interleaved);
  CHECK_FALSE(weights.load(own, false));
}

TEST_CASE("weights: a file in memory counts against the device's budget while it is used") {
  const WeightsScratch scratch;
  write_gguf(scratch / "a.gguf");
  Device device(make_cpu_backend(1));
  Weights weights(open_weights(scratch / "a.gguf"));
  const size_t bytes = weights.file().files()[0]->size();
  TensorPtr w = weights.tensor(device, "w");
  device.set_budget(bytes - 1);
  CHECK_FALSE(weights.load(device, true));
  CHECK_THAT(refusal([&] { weights.load(device, false); }), containing("memory: weights in memory"));
  CHECK(device.held() == 0);
  device.set_budget(2 * bytes);
  CHECK(weights.load(device, false));
  CHECK(w->view.data == stored(weights, "w"));
  CHECK(w->view.as<float>()[5] == 6);
  CHECK(device.held() == bytes);
  w = weights.tensor(device, "w");
  weights.close();
  CHECK(device.held() == bytes);
  w.reset();
  CHECK(device.held() == 0);
}

TEST_CASE("weights: a path is read as what it is") {
  const WeightsScratch scratch;
  write_gguf(scratch / "no_ending");
  CHECK(std::get<uint64_t>(open_weights(scratch / "no_ending")->find_entry("a.count")->value) == 3);
  float number = 4;
  save_safetensors(scratch / "model.safetensors", {{"x", View(&number, DType::f32, {1})}});
  const auto file = open_weights(scratch.folder.string());
  CHECK(std::get<std::string_view>(file->find_entry("format")->value) == "pt");
  CHECK(file->tensors().size() == 1);
  CHECK_THAT(refusal([&] { file->get("model.xx"); }), containing("the nearest name is x"));
  fs::remove(scratch / "model.safetensors");
  CHECK_THAT(
      refusal([&] { open_weights(scratch.folder.string()); }),
      containing("io: ") && containing("holds no weights that qeng knows; expected ") && containing("a GGUF file"));
}
