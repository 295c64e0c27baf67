// SHA-256, of bytes in memory and of the blocks of a file.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace qeng {

// Small enough that a lost or wrong one costs little, large enough that its request and its 32 bytes of hash cost nothing.
constexpr uint64_t kFileBlock = uint64_t{1} << 20;

using Sha256 = std::array<uint8_t, 32>;
Sha256 sha256(std::string_view bytes);
std::string hex(const Sha256& hash);
bool read_hex(std::string_view text, Sha256* hash);  // false unless 64 lower-case digits

// Called between runs of blocks, with the bytes done and those of all; may throw.
using BlockWatch = std::function<void(uint64_t done, uint64_t total)>;

// The hashes of all blocks of an open file of `size` bytes, by all cores. Error("io") names the path.
std::vector<Sha256> hash_blocks(int fd, const std::string& path, uint64_t size, const BlockWatch& watch);

// Reads all of `bytes` at an offset; false with errno where that cannot be, errno 0 at the end of the file.
bool read_at(int fd, uint64_t offset, char* to, size_t bytes);

}  // namespace qeng
