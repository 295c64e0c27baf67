// Matmul with a matrix of a stored dtype against the same product with a bf16 one, as training computes them:
//   qeng_bench_stored_matmul [--types one_bit,ternary] [--shapes 4096x4096,11008x4096] [--rows 512] [--rounds 5]
// w is [n, k]: forward is y = x w^T of x [rows, k], gradient is dx = dy w of dy [rows, n]; x, y, dx and dy are bf16.
// Rounds take turns; the median time of each, GFLOP/s, and the median over rounds of bf16's time over the dtype's.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/error.h"
#include "kernels/math/bf16.h"
#include "kernels/view_text.h"

using namespace qeng;

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::stringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<bf16> random_values(int64_t count) {
  std::mt19937 engine(1);
  std::vector<bf16> values(static_cast<size_t>(count));
  for (bf16& value : values) value = to_bf16(static_cast<float>(engine() % 2001) * 1e-3f - 1);
  return values;
}

void compare(Backend& backend, DType dtype, int64_t n, int64_t k, int64_t rows, int rounds) {
  std::vector<bf16> x = random_values(rows * std::max(n, k)), y(static_cast<size_t>(rows * std::max(n, k))),
                    dense = random_values(n * k);
  std::vector<uint32_t> bits(dtype_bytes(dtype, n * k) / 4);
  std::mt19937 engine(2);
  for (uint32_t& word : bits) {
    word = static_cast<uint32_t>(engine());
    if (dtype == DType::ternary) word &= 0x55555555u;
  }
  for (const bool forward : {true, false}) {
    const int64_t inner = forward ? k : n, outer = forward ? n : k;
    Matmul op;
    op.a = View(x.data(), DType::bf16, {rows, inner}), op.c = View(y.data(), DType::bf16, {rows, outer});
    op.trans_b = forward;
    std::vector<double> stored, reference, share;
    for (int round = 0; round <= rounds; ++round) {
      double seconds[2];
      for (int side = 0; side < 2; ++side) {
        op.b = side ? View(dense.data(), DType::bf16, {n, k}) : View(bits.data(), dtype, {n, k});
        const double start = now();
        backend.run(op);
        seconds[side] = now() - start;
      }
      if (round == 0) continue;
      stored.push_back(seconds[0]), reference.push_back(seconds[1]), share.push_back(seconds[1] / seconds[0]);
    }
    const double flops = 2.0 * static_cast<double>(rows * n * k);
    std::printf(
        "%-8s %6lld x %5lld, %lld rows, %-8s %9.2f ms %7.1f GFLOP/s; bf16 %9.2f ms %7.1f GFLOP/s; share %.0f%%\n",
        dtype_name(dtype), static_cast<long long>(n), static_cast<long long>(k), static_cast<long long>(rows),
        forward ? "forward" : "gradient", median(stored) * 1e3, flops / median(stored) * 1e-9, median(reference) * 1e3,
        flops / median(reference) * 1e-9, median(share) * 100);
    std::fflush(stdout);
  }
}

int bench(int count, char** arguments) {
  std::string types = "one_bit,ternary", shapes = "4096x4096,11008x4096";
  int64_t rows = 512;
  int rounds = 5;
  for (int i = 1; i < count; i += 2) {
    const std::string option = arguments[i], value = i + 1 < count ? arguments[i + 1] : "";
    if (option == "--types")
      types = value;
    else if (option == "--shapes")
      shapes = value;
    else if (option == "--rows")
      rows = std::stoll(value);
    else if (option == "--rounds")
      rounds = std::stoi(value);
    else
      fail("usage", "unknown option ", option, " ", value, "; expected --types, --shapes, --rows or --rounds");
  }
  const auto backend = make_cpu_backend();
  std::printf("%s\n", backend->description().c_str());
  for (const std::string& type : split(types))
    for (const std::string& shape : split(shapes))
      compare(*backend, dtype_from_name(type), std::stoll(shape), std::stoll(shape.substr(shape.find('x') + 1)), rows,
              rounds);
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
