#include "engine/blocks/sha256.h"

#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "kernels/error.h"
#include "kernels/parallel.h"

namespace qeng {
namespace {

constexpr uint64_t kRun = 256;  // blocks between two calls of a watch: a tenth of a second or so

bool digest(const char* data, size_t bytes, Sha256* hash) {
  return EVP_Digest(data, bytes, hash->data(), nullptr, EVP_sha256(), nullptr) == 1;
}

int value_of(char digit) {
  return digit >= '0' && digit <= '9' ? digit - '0' : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

}  // namespace

Sha256 sha256(std::string_view bytes) {
  Sha256 hash;
  if (!digest(bytes.data(), bytes.size(), &hash))
    fail("unsupported", "OpenSSL offers no SHA-256 here, so nothing can be verified");
  return hash;
}

std::string hex(const Sha256& hash) {
  std::string text;
  text.reserve(2 * hash.size());
  for (const uint8_t byte : hash) text += {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
  return text;
}

bool read_hex(std::string_view text, Sha256* hash) {
  if (text.size() != 2 * hash->size()) return false;
  for (size_t i = 0; i < hash->size(); ++i) {
    const int high = value_of(text[2 * i]), low = value_of(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    (*hash)[i] = static_cast<uint8_t>(16 * high + low);
  }
  return true;
}

bool read_at(int fd, uint64_t offset, char* to, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = ::pread(fd, to, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = 0;
    if (n <= 0) return false;
    to += n, offset += static_cast<uint64_t>(n), bytes -= static_cast<size_t>(n);
  }
  return true;
}

std::vector<Sha256> hash_blocks(int fd, const std::string& path, uint64_t size, const BlockWatch& watch) {
  std::vector<Sha256> hashes((size + kFileBlock - 1) / kFileBlock);
  const int threads = available_threads();
  std::vector<std::vector<char>> buffers(static_cast<size_t>(threads));
  for (auto& buffer : buffers) buffer.resize(kFileBlock);
  std::atomic<int> reason{-1};  // errno of a block that could not be read
  for (uint64_t first = 0; first < hashes.size(); first += kRun) {
    const uint64_t count = std::min<uint64_t>(kRun, hashes.size() - first);
    parallel_each(threads, static_cast<int64_t>(count), [&](int64_t i) {
      const uint64_t index = first + static_cast<uint64_t>(i), at = index * kFileBlock;
      const size_t bytes = std::min<uint64_t>(kFileBlock, size - at);
      char* buffer = buffers[static_cast<size_t>(team_rank())].data();
      if (!read_at(fd, at, buffer, bytes) || !digest(buffer, bytes, &hashes[index])) reason = errno;
    });
    if (reason == 0) fail("io", path, ": has become shorter while it was read; try again when nothing writes to it");
    if (reason > 0) fail("io", path, ": cannot be read: ", std::strerror(reason));
    if (watch) watch(std::min(size, (first + count) * kFileBlock), size);
  }
  return hashes;
}

}  // namespace qeng
