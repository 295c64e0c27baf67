// The linear layers of a Qwen2-1.5B shape in each stored dtype, as RowLinear computes them on the CPU, or matrices of
// one shape each:
//   qeng_bench_row_linear [--types tq2_0,q8_0] [--head q6_k] [--rows 1,512] [--threads 2] [--rounds 5] [--clock cpu]
//                         [--layout rows|interleaved] [--shapes 4096x4096,11008x4096] [--isa avx2]
// bench/README.md says what the columns mean. Weights are random blocks, a tensor each, so that nothing stays in a
// cache.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/error.h"
#include "kernels/interleave.h"
#include "kernels/math/blocks/with_block.h"
#include "kernels/ops.h"
#include "kernels/parallel.h"
#include "kernels/view_text.h"

using namespace qeng;

namespace {

constexpr size_t kCopiesBytes = size_t{256} << 20;  // of matrices of one shape: more than caches hold
constexpr int64_t kHidden = 1536, kWide = 8960, kKv = 256, kLayers = 28, kVocab = 151936;

bool cpu_clock =
    false;  // count this process's time on the processor: what one thread would do on a machine that is its own
double now() {
  if (cpu_clock) return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::stringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

// Bytes/s of reading alone, which is what a row of x costs: eight streams a thread, which are faster than one.
double read_bandwidth(int threads, const std::vector<char>& memory) {
  double best = 0;
  for (int attempt = 0; attempt < 5; ++attempt) {
    const double start = now();
    parallel_for(threads, static_cast<int64_t>(memory.size()) / 512, 4096, [&](int64_t begin, int64_t end) {
      uint64_t sums[8] = {}, words[8];
      const char* first = memory.data() + begin * 512;
      for (int64_t line = 0; line < end - begin; ++line)
        for (int64_t stream = 0; stream < 8; ++stream) {
          std::memcpy(words, first + (stream * (end - begin) + line) * 64, 64);
          for (int i = 0; i < 8; ++i) sums[i] += words[i];
        }
      volatile uint64_t sink = sums[0] ^ sums[1] ^ sums[2] ^ sums[3] ^ sums[4] ^ sums[5] ^ sums[6] ^ sums[7];
      (void)sink;
    });
    best = std::max(best, static_cast<double>(memory.size()) / (now() - start));
  }
  return best;
}

// A model's weights in one piece of memory.
class Weights {
 public:
  Weights(DType layers, DType head, bool interleaved) : layers_(layers), head_(head), interleaved_(interleaved) {
    const size_t each =
        dtype_bytes(layers, kHidden * (2 * kHidden + 2 * kKv)) + dtype_bytes(layers, 3 * kHidden * kWide);
    memory.resize(each * kLayers + dtype_bytes(head, kHidden * kVocab));
    const size_t blocks = each * kLayers;
    fill(layers, memory.data(), blocks);
    fill(head, memory.data() + blocks, memory.size() - blocks);
  }
  View layer(int64_t n, int64_t k) { return take(layers_, n, k); }
  View head() { return take(head_, kVocab, kHidden); }
  // As many [n, k] matrices as fit kCopiesBytes, at least one.
  Weights(DType dtype, int64_t n, int64_t k, bool interleaved)
      : layers_(dtype), head_(dtype), interleaved_(interleaved) {
    const size_t each = dtype_bytes(dtype, n * k);
    memory.resize(std::max<size_t>(1, kCopiesBytes / each) * each);
    fill(dtype, memory.data(), memory.size());
  }
  void rewind() { used_ = 0; }
  std::vector<char> memory;

 private:
  View take(DType dtype, int64_t n, int64_t k) {
    View view(memory.data() + used_, dtype, {n, k});
    used_ += view.bytes();
    if (!interleaved_ || !can_interleave(view)) return view;
    if (used_ > done_) interleave(view, available_threads());
    done_ = std::max(done_, used_);
    view.interleaved = true;
    return view;
  }
  // Random codes and equal scales: a stretch of blocks, repeated.
  static void fill(DType dtype, char* to, size_t bytes) {
    std::mt19937 engine(1);
    std::vector<char> stretch;
    const auto add = [&](const auto& value) {
      stretch.insert(stretch.end(), reinterpret_cast<const char*>(&value), reinterpret_cast<const char*>(&value + 1));
    };
    for (int i = 0; i < 9973; ++i) {
      if (!is_block(dtype)) {
        const float value = static_cast<float>(engine() % 2001) * 1e-5f - 0.01f;
        dtype == DType::f32 ? add(value) : dtype == DType::bf16 ? add(to_bf16(value)) : add(to_f16(value));
        continue;
      }
      blocks::with_block(dtype, [&](auto block) {
        unsigned char random[sizeof block];
        for (unsigned char& byte : random) byte = static_cast<unsigned char>(engine());
        std::memcpy(&block, random, sizeof block);
        if constexpr (requires { block.d; }) block.d = to_f16(0.01f);
        if constexpr (requires { block.dmin; }) block.dmin = to_f16(0.01f);
        if constexpr (requires { block.m; }) block.m = to_f16(0.01f);
        if constexpr (requires { block.e; }) block.e = 120;
        add(block);
      });
    }
    for (size_t done = 0; done < bytes; done += stretch.size())
      std::memcpy(to + done, stretch.data(), std::min(stretch.size(), bytes - done));
  }

  DType layers_, head_;
  bool interleaved_;
  size_t used_ = 0, done_ = 0;  // bytes given out, bytes interleaved
};

// The products of a step of so many tokens. The head's is of one row, as only the last token's logits are wanted.
std::vector<RowLinear> step(Weights& weights, const View& x, const View& wide, const View& y, const View& logits) {
  std::vector<RowLinear> ops;
  const int64_t rows = x.rows();
  const auto add = [&](const View& input, std::initializer_list<int64_t> sizes) {
    RowLinear op;
    op.x = input;
    int64_t used = 0;
    for (int64_t n : sizes) {
      op.w.push_back(weights.layer(n, input.columns()));
      op.y.push_back(View(y.as<float>() + rows * used, DType::f32, {rows, n}));
      used += n;
    }
    ops.push_back(op);
  };
  weights.rewind();
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    add(x, {kHidden, kKv, kKv}), add(x, {kHidden});
    add(x, {kWide, kWide}), add(wide, {kHidden});
  }
  RowLinear head;
  head.x = View(x.data, x.dtype, {1, kHidden}), head.w = {weights.head()}, head.y = {logits};
  ops.push_back(head);
  return ops;
}

// Products with each copy of an [n, k] matrix, of one_bit and ternary with scales.
std::vector<RowLinear> products(Weights& weights, DType dtype, int64_t n, const View& x, const View& scale,
                                const View& y) {
  std::vector<RowLinear> ops;
  weights.rewind();
  for (size_t used = 0; used < weights.memory.size(); used += dtype_bytes(dtype, n * x.columns())) {
    RowLinear op;
    op.x = x, op.w = {weights.layer(n, x.columns())}, op.y = {y};
    if (dtype == DType::one_bit || dtype == DType::ternary) op.scale = {scale};
    ops.push_back(op);
  }
  return ops;
}

// Best and median time of the rounds, in ms of one product, and shares of reading of the same two rounds.
void bench_shape(Backend& backend, const std::string& type, const std::string& shape, int64_t rows, int threads,
                 int rounds, bool interleaved) {
  const DType dtype = dtype_from_name(type);
  const int64_t n = std::stoll(shape), k = std::stoll(shape.substr(shape.find('x') + 1));
  Weights weights(dtype, n, k, interleaved);
  std::vector<float> x(static_cast<size_t>(rows * k)), y(static_cast<size_t>(rows * n)),
      scale(static_cast<size_t>(n), 0.01f);
  std::mt19937 engine(2);
  for (float& value : x) value = static_cast<float>(engine() % 2001) * 1e-3f - 1;
  const std::vector<RowLinear> ops =
      products(weights, dtype, n, View(x.data(), DType::f32, {rows, k}), View(scale.data(), DType::f32, {n}),
               View(y.data(), DType::f32, {rows, n}));
  struct Round {
    double seconds, read;
    bool operator<(const Round& other) const { return seconds < other.seconds; }
  };
  std::vector<Round> all;
  for (int round = 0; round <= rounds; ++round) {
    const double read = read_bandwidth(threads, weights.memory), start = now();
    for (const RowLinear& op : ops) backend.run(op);
    if (round > 0) all.push_back({(now() - start) / static_cast<double>(ops.size()), read});
  }
  std::sort(all.begin(), all.end());
  const Round best = all.front(), median = all[all.size() / 2];
  const double bytes = static_cast<double>(dtype_bytes(dtype, n * k)), macs = static_cast<double>(rows * n * k);
  std::printf("%-8s %12s %5lld %9.4f %9.4f ms %8.2f GB/s %6.0f%% %6.0f%% of %.1f GB/s %8.1f MAC/ns\n", type.c_str(),
              shape.c_str(), static_cast<long long>(rows), best.seconds * 1e3, median.seconds * 1e3,
              bytes / best.seconds * 1e-9, bytes / best.seconds / best.read * 100,
              bytes / median.seconds / median.read * 100, median.read * 1e-9, macs / best.seconds * 1e-9);
  std::fflush(stdout);
}

int bench(int count, char** arguments) {
  std::string shapes, types = "tq2_0,tq1_0,q2_0,q8_0,q4_k,q6_k,q4_0", head, rows_list = "1,512", isa;
  int threads = available_threads(), rounds = 5;
  bool interleaved = false;
  for (int i = 1; i < count; i += 2) {
    const std::string option = arguments[i], value = i + 1 < count ? arguments[i + 1] : "";
    if (option == "--types")
      types = value;
    else if (option == "--head")
      head = value;
    else if (option == "--shapes")
      shapes = value;
    else if (option == "--rows")
      rows_list = value;
    else if (option == "--threads")
      threads = std::stoi(value);
    else if (option == "--rounds")
      rounds = std::stoi(value);
    else if (option == "--isa")
      isa = value;
    else if (option == "--layout" && (value == "rows" || value == "interleaved"))
      interleaved = value == "interleaved";
    else if (option == "--clock" && value == "cpu")
      cpu_clock = true, threads = 1;
    else
      fail("usage", "unknown option ", option, " ", value,
           "; expected --types, --head, --shapes, --rows, --threads, --rounds, --isa, --layout interleaved or --clock "
           "cpu");
  }
  const auto backend = make_cpu_backend(threads, isa);
  if (!shapes.empty()) {
    std::printf("%s\n", backend->description().c_str());
    for (const std::string& type : split(types))
      for (const std::string& shape : split(shapes))
        for (const std::string& rows : split(rows_list))
          bench_shape(*backend, type, shape, std::stoll(rows), threads, rounds, interleaved);
    return 0;
  }
  std::printf("%s\n%-8s %5s %10s %10s %8s %8s %10s %10s\n", backend->description().c_str(), "type", "rows", "ms",
              "tokens/s", "GB/s", "of read", "MAC/ns", "read GB/s");
  std::mt19937 engine(2);
  for (const std::string& type : split(types)) {
    const DType dtype = dtype_from_name(type);
    Weights weights(dtype, head.empty() ? dtype : dtype_from_name(head), interleaved);
    for (const std::string& text : split(rows_list)) {
      const int64_t rows = std::stoll(text);
      std::vector<float> x(static_cast<size_t>(rows * kWide)), y(static_cast<size_t>(rows * 2 * kWide)), logits(kVocab);
      for (float& value : x) value = static_cast<float>(engine() % 2001) * 1e-3f - 1;
      const std::vector<RowLinear> ops =
          step(weights, View(x.data(), DType::f32, {rows, kHidden}), View(x.data(), DType::f32, {rows, kWide}),
               View(y.data(), DType::f32, {rows, 2 * kWide}), View(logits.data(), DType::f32, {1, kVocab}));
      double best = 1e30, read = 0, macs = 0;
      for (const RowLinear& op : ops)
        for (const View& w : op.w) macs += static_cast<double>(w.elements() * op.x.rows());
      for (int round = 0; round < rounds; ++round) {
        read = std::max(read, read_bandwidth(threads, weights.memory));
        const double start = now();
        for (const RowLinear& op : ops) backend->run(op);
        best = std::min(best, now() - start);
      }
      const double bytes = static_cast<double>(weights.memory.size());
      std::printf("%-8s %5lld %10.2f %10.2f %8.2f %7.0f%% %10.1f %10.2f\n", type.c_str(), static_cast<long long>(rows),
                  best * 1e3, static_cast<double>(rows) / best, bytes / best * 1e-9, bytes / best / read * 100,
                  macs / best * 1e-9, read * 1e-9);
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return bench(count, arguments);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
