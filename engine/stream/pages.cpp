#include "engine/stream/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // of Linux 5.14, which Debian 12's C library may not name
#endif

namespace qeng {

namespace {

constexpr size_t kPiece = size_t{4} << 20;  // brought at once: a thread that has to stop, stops within a millisecond

uintptr_t page_bytes() {
  static const auto bytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

struct Pages {
  char* begin;
  size_t bytes;
};

// All that the memory touches.
Pages touched(const void* memory, size_t bytes) {
  const uintptr_t page = page_bytes(), at = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t begin = at / page * page, end = (at + bytes + page - 1) / page * page;
  return {reinterpret_cast<char*>(begin), static_cast<size_t>(end - begin)};
}

}  // namespace

bool lies_in_file(const void* memory) {
  std::ifstream maps(
      "/proc/self/maps");  // "begin-end rights offset device inode path", in hexadecimal but for the inode
  const auto at = reinterpret_cast<uintptr_t>(memory);
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0, inode = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %*s %*s %*s %lu", &begin, &end, &inode) == 3 && begin <= at && at < end)
      return inode != 0;
  }
  return false;
}

void ask_for_pages(const void* memory, size_t bytes) {
  const Pages pages = touched(memory, bytes);
  ::madvise(pages.begin, pages.bytes, MADV_WILLNEED);
}

bool bring_pages(const void* memory, size_t bytes) {
  const Pages pages = touched(memory, bytes);
  for (size_t done = 0; done < pages.bytes; done += kPiece) {
    const size_t piece = std::min(kPiece, pages.bytes - done);
    if (::madvise(pages.begin + done, piece, MADV_POPULATE_READ) == 0) continue;
    if (errno == EFAULT) return false;
    for (size_t i = 0; i < piece; i += page_bytes())
      (void)*static_cast<volatile char*>(pages.begin + done + i);  // an older system
  }
  return true;
}

void drop_pages(const void* memory, size_t bytes) {
  const uintptr_t page = page_bytes(), at = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t begin = (at + page - 1) / page * page, end = (at + bytes) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace qeng
