// The two hashes by which a hub names what a file holds: SHA-256 of a large file (Git LFS), and the SHA-1 that Git
// gives a small one, of "blob SIZE\0" and its bytes.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace qeng {

bool is_hex(const std::string& text, size_t digits);  // lower-case

class Digest {
 public:
  // expected: 64 hex digits, 40 of them, or anything else, for which nothing is checked. size: of the whole file.
  Digest(const std::string& expected, uint64_t size);
  ~Digest();
  Digest(Digest&&) = default;
  Digest& operator=(Digest&&) = default;
  void add(std::string_view bytes);
  bool checks() const { return context_ != nullptr; }
  std::string finish();  // the hex digits; "" where nothing is checked

 private:
  struct Free {
    void operator()(void* context) const;
  };
  std::unique_ptr<void, Free> context_;
};

}  // namespace qeng
