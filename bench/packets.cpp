// qeng_bench_packets: the sums and the reader of packets.
//
//   qeng_bench_packets crc                             sums: ours, the tables', and zlib's crc32 (another polynomial)
//   qeng_bench_packets make STEM [--tokens N]          STEM.qubgpu, and the same documents as STEM.bin and STEM.idx
//                                                      (Megatron's form) for loader_peer.py; N in millions (268: 1 GB)
//   qeng_bench_packets read STEM.qubgpu [--row N] [--rows N] [--times N]
//                                                      open, verify, and one epoch of permuted, packed batches
//
// Documents have log-normal lengths, median 250 tokens; half of them have a loss mask in the .qubgpu file.
#include <zlib.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <string>

#include "engine/packets/batches.h"
#include "engine/packets/packet_writer.h"
#include "kernels/crc16_fast.h"
#include "kernels/error.h"
#include "kernels/math/crc16.h"

namespace {

using namespace qeng;
using Clock = std::chrono::steady_clock;

double seconds(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// The best of `times` rounds, in GB/s.
double rate(size_t bytes, int times, const std::function<unsigned(const uint8_t*)>& sum) {
  std::vector<uint8_t> data(1 << 18);  // stays in the second-level cache: the sum's speed, not the memory's
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * i >> 3);
  const size_t rounds = 20'000'000 / bytes;
  double best = 1e9;
  volatile unsigned keep = 0;
  for (int t = 0; t < times; ++t) {
    const auto begin = Clock::now();
    for (size_t i = 0; i < rounds; ++i) keep = keep + sum(&data[i * 64 % (data.size() - bytes)]);
    best = std::min(best, seconds(begin));
  }
  return static_cast<double>(rounds * bytes) / best / 1e9;
}

int crc() {
  std::printf("crc16 by %s, GB/s, one thread, best of 9\n%10s %10s %10s %10s\n", crc16_method(), "bytes", "qeng",
              "tables", "zlib crc32");
  for (size_t bytes : {64u, 256u, 1024u, 4096u, 65535u}) {
    const double ours = rate(bytes, 9, [&](const uint8_t* p) { return crc16_fast(kCrcCcittFalse, p, bytes); });
    const double tables = rate(bytes, 9, [&](const uint8_t* p) { return crc16(kCrcCcittFalse, p, bytes); });
    const double zlib =
        rate(bytes, 9, [&](const uint8_t* p) { return static_cast<unsigned>(crc32(0, p, static_cast<uInt>(bytes))); });
    std::printf("%10zu %10.2f %10.2f %10.2f\n", bytes, ours, tables, zlib);
  }
  return 0;
}

int make(const std::string& stem, int64_t millions) {
  std::mt19937_64 random(1);
  std::lognormal_distribution<double> length(std::log(250), 0.8);
  PacketWriter writer(stem + ".qubgpu");
  std::ofstream bin(stem + ".bin", std::ios::binary), idx(stem + ".idx", std::ios::binary);
  std::vector<int32_t> sizes, tokens;
  std::vector<int64_t> pointers;
  std::vector<uint8_t> mask;
  int64_t at = 0;
  for (int64_t total = 0; total < millions * 1'000'000; total += static_cast<int64_t>(tokens.size())) {
    tokens.resize(static_cast<size_t>(std::clamp(length(random), 8.0, 16000.0)));
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 151'000);
    mask.assign(random() % 2 ? tokens.size() : 0, 1);
    std::fill_n(mask.begin(), mask.size() / 3, uint8_t{0});
    writer.add(tokens, mask);
    bin.write(reinterpret_cast<const char*>(tokens.data()), static_cast<std::streamsize>(tokens.size() * 4));
    sizes.push_back(static_cast<int32_t>(tokens.size())), pointers.push_back(at);
    at += static_cast<int64_t>(tokens.size() * 4);
  }
  writer.finish();
  const auto put = [&](const void* data, size_t bytes) {
    idx.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  };
  const uint64_t version = 1, count = sizes.size(), documents = count + 1;
  const uint8_t dtype = 4;  // int32
  put("MMIDIDX\0\0", 9), put(&version, 8), put(&dtype, 1), put(&count, 8), put(&documents, 8);
  put(sizes.data(), sizes.size() * 4), put(pointers.data(), pointers.size() * 8);
  for (int64_t i = 0; i <= static_cast<int64_t>(count); ++i) put(&i, 8);
  std::printf("%zu documents, %lld bytes of tokens\n", sizes.size(), static_cast<long long>(at));
  return bin && idx ? 0 : 1;
}

int read(const std::string& path, int64_t row_tokens, int64_t rows, int times) {
  double least_open = 1e9, least_verify = 1e9, least_epoch = 1e9, tokens = 0;
  for (int t = 0; t < times; ++t) {
    auto begin = Clock::now();
    const auto file = PacketFile::open(path);
    least_open = std::min(least_open, seconds(begin));
    begin = Clock::now();
    if (!file->verify().ok()) return std::fprintf(stderr, "%s is damaged\n", path.c_str()), 1;
    least_verify = std::min(least_verify, seconds(begin));
    tokens = static_cast<double>(file->tokens());
    begin = Clock::now();
    Batches batches(file, {.row_tokens = row_tokens, .rows = rows, .seed = t, .epochs = 1, .prefetch = 4});
    Batch batch;
    uint64_t seen = 0;
    while (batches.next(batch)) seen += batch.counts.real_tokens;
    least_epoch = std::min(least_epoch, seconds(begin));
    if (seen != file->tokens())
      return std::fprintf(stderr, "%llu tokens of %llu\n", static_cast<unsigned long long>(seen),
                          static_cast<unsigned long long>(file->tokens())),
             1;
  }
  const auto say = [&](const char* what, double s) {
    std::printf("%-44s %8.3f s %8.1f M tokens/s\n", what, s, tokens / s / 1e6);
  };
  std::printf("%.0f M tokens, rows of %lld x %lld, best of %d\n", tokens / 1e6, static_cast<long long>(rows),
              static_cast<long long>(row_tokens), times);
  say("open (header, index)", least_open);
  say("verify (every hash, every frame)", least_verify);
  say("an epoch (CRC of each frame, permute, pack)", least_epoch);
  say("open and an epoch", least_open + least_epoch);
  say("open, verify and an epoch", least_open + least_verify + least_epoch);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  int64_t millions = 268, row = 2048, rows = 8, times = 5;
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    int64_t* value = nullptr;
    for (auto [name, target] :
         {std::pair{"--tokens", &millions}, {"--row", &row}, {"--rows", &rows}, {"--times", &times}})
      if (std::strcmp(argv[i], name) == 0) value = target;
    if (value && i + 1 < argc) {
      *value = std::atoll(argv[++i]);
    } else {
      words.emplace_back(argv[i]);
    }
  }
  try {
    if (words.size() == 1 && words[0] == "crc") return crc();
    if (words.size() == 2 && words[0] == "make") return make(words[1], millions);
    if (words.size() == 2 && words[0] == "read") return read(words[1], row, rows, static_cast<int>(times));
  } catch (const Error& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
  return std::fprintf(
             stderr,
             "usage: qeng_bench_packets crc | make STEM [--tokens M] | read FILE [--row N] [--rows N] [--times N]\n"),
         2;
}
