// What the tests of packets share: random documents, a file of them in a folder that is removed afterwards.
#pragma once
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "engine/packets/packet_writer.h"
#include "engine/packets/scanner.h"
#include "kernels/error.h"

namespace qeng {

struct TemporaryFolder {
  std::filesystem::path path;
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "qeng-packets-XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path); }
  std::string file(const std::string& name) const { return (path / name).string(); }
};

inline std::vector<Record> random_records(int count, int max_tokens, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Record> records(static_cast<size_t>(count));
  for (Record& r : records) {
    r.tokens.resize(1 + random() % static_cast<unsigned>(max_tokens));
    for (int32_t& token : r.tokens) token = static_cast<int32_t>(random() % 150000);
    if (random() % 2) {
      r.mask.resize(r.tokens.size());
      for (uint8_t& bit : r.mask) bit = random() % 2;
    }
    r.src = static_cast<uint8_t>(1 + random() % 4), r.dst = static_cast<uint8_t>(random() % 6);
  }
  return records;
}

inline void write_records(const std::string& path, const std::vector<Record>& records,
                          CrcVariant variant = CrcVariant::ccitt_false) {
  PacketWriter writer(path, {{"tokenizer", {{"name", "test"}}}}, variant);
  for (const Record& r : records) writer.add(r.tokens, r.mask, r.src, r.dst);
  writer.finish();
}

inline std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// The message of the Error that f() throws, or nothing.
template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace qeng
