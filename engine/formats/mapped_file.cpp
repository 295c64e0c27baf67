#include "engine/formats/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>

#include "kernels/error.h"
#include "kernels/parallel.h"
#include "kernels/system_memory.h"

namespace qeng {
namespace {

// The nearest parent that exists tells whether the name or the folder is wrong.
std::string missing_hint(const std::string& path) {
  std::filesystem::path parent = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  if (parent.empty() || std::filesystem::exists(parent, ignored)) return "no such file; check the name";
  return "no such file: the folder " + parent.string() + " does not exist either";
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

int open_to_read(const std::string& path) { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }

// Reads `bytes` at `offset`; returns 0 or the error's number, EIO where the file ends before.
int read_at(int fd, std::byte* to, size_t bytes, size_t offset) {
  while (bytes > 0) {
    const ssize_t got = ::pread(fd, to, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0 ? errno : EIO;
    to += got, offset += static_cast<size_t>(got), bytes -= static_cast<size_t>(got);
  }
  return 0;
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path, OnShrink on_shrink) {
  Descriptor file{open_to_read(path)};
  if (file.fd < 0) {
    if (errno == ENOENT || errno == ENOTDIR) fail("io", path, ": ", missing_hint(path));
    fail("io", path, ": cannot open for reading: ", std::strerror(errno));
  }
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) fail("io", path, ": cannot read its size: ", std::strerror(errno));
  if (S_ISDIR(status.st_mode)) fail("io", path, ": is a folder, expected a file");
  if (!S_ISREG(status.st_mode)) fail("io", path, ": is not a regular file, so it cannot be mapped");
  size_t size = static_cast<size_t>(status.st_size);
  void* memory = nullptr;
  if (size > 0) {
    memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.fd, 0);
    if (memory == MAP_FAILED) fail("io", path, ": cannot map ", size, " bytes: ", std::strerror(errno));
  }
  const std::shared_ptr<MappedFile> mapped(
      new MappedFile(path, static_cast<const std::byte*>(memory), size, status.st_dev, status.st_ino));
  if (size > 0) mapped->watch(on_shrink);
  return mapped;
}

void MappedFile::load(const std::vector<Span>& without) const {
  if (size_ == 0) return;
  const Descriptor file{open_to_read(path_)};
  struct stat status {};
  if (file.fd < 0 || ::fstat(file.fd, &status) != 0 || static_cast<size_t>(status.st_size) != size_ ||
      status.st_dev != device_ || status.st_ino != inode_)
    fail("io", path_, ": the file is no longer the one that was opened; open it again");
  auto* memory = const_cast<std::byte*>(data_);
  const auto put_here = [&](int flags, int fd) {
    return ::mmap(memory, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | flags, fd, 0) != MAP_FAILED;
  };
  std::atomic<int> error{put_here(MAP_ANONYMOUS, -1) ? 0 : errno};
  if (!error) {
    ::madvise(memory, size_, MADV_HUGEPAGE);  // advice: refusal changes nothing but speed
    constexpr int64_t kPart = int64_t{8} << 20;
    const auto read = [&](size_t from, size_t to) {
      parallel_for(available_threads(), static_cast<int64_t>(to - from), kPart, [&](int64_t begin, int64_t end) {
        const size_t at = from + static_cast<size_t>(begin);
        const int found = read_at(file.fd, memory + at, static_cast<size_t>(end - begin), at);
        if (found) error = found;
      });
    };
    size_t from = 0;
    for (const Span& span : without) {
      if (span.begin > from) read(from, span.begin);
      from = span.end;
    }
    if (from < size_) read(from, size_);
  }
  if (!error) return;
  if (!put_here(MAP_NORESERVE, file.fd)) fail("io", path_, ": cannot map it again: ", std::strerror(errno));
  fail("io", path_, ": cannot read its ", size_, " bytes into memory: ", std::strerror(error));
}

// ---------------------------------------------------------------- files that shrink

constexpr const char* kShrunk =
    ": the file became shorter while it was open, or its disk or network failed: files in use are replaced (written "
    "under another name and renamed), never rewritten; see that it is whole, and open it again";

// A list that only grows, so that the handler may walk it at any moment; an entry whose mapping is gone is used again.
struct MappedFile::Watch {
  std::atomic<uintptr_t> begin{0}, end{0};  // begin 0: free
  std::atomic<bool> torn{false};
  std::atomic<const char*> path{nullptr};  // of the MappedFile; nullptr: OnShrink::zeros
  Watch* next = nullptr;

  static std::atomic<Watch*> first;
  static std::mutex adding;
  static struct sigaction before;
};
std::atomic<MappedFile::Watch*> MappedFile::Watch::first{nullptr};
std::mutex MappedFile::Watch::adding;
struct sigaction MappedFile::Watch::before;

MappedFile::~MappedFile() {
  if (watch_) watch_->begin = 0;
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

namespace {
// For the handler of a signal: no allocation, no locale.
[[noreturn]] void end_process(const char* path) {
  for (const char* part : {"\nqeng: ", path, kShrunk, "\n"})
    if (::write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
  ::_exit(1);
}
}  // namespace

void MappedFile::on_bus_error(int signal, siginfo_t* info, void* context) {
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Watch* w = Watch::first; w; w = w->next) {
    const uintptr_t begin = w->begin, end = w->end;
    if (begin == 0 || at < begin || at >= end) continue;
    if (const char* path = w->path) end_process(path);
    w->torn = true;  // before the zeros are there to be read
    const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    // What lies behind is gone too; page by page, a large file would run out of mappings.
    void* zeros = ::mmap(reinterpret_cast<void*>(at / page * page), end - at / page * page, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (zeros != MAP_FAILED) return;
  }
  const struct sigaction& before = Watch::before;
  if (before.sa_flags & SA_SIGINFO) return before.sa_sigaction(signal, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) return before.sa_handler(signal);
  ::sigaction(SIGBUS, &before, nullptr);  // the access is tried again, and ends the process
}

void MappedFile::watch(OnShrink on_shrink) {
  const std::lock_guard lock(Watch::adding);
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    return ::sigaction(SIGBUS, &action, &Watch::before) == 0;
  }();
  if (!installed) fail("io", path_, ": cannot watch for SIGBUS: ", std::strerror(errno));
  for (watch_ = Watch::first; watch_ && watch_->begin != 0;) watch_ = watch_->next;
  if (!watch_) {
    watch_ = new Watch;
    watch_->next = Watch::first;
    Watch::first = watch_;
  }
  watch_->torn = false;
  watch_->path = on_shrink == OnShrink::exit ? path_.c_str() : nullptr;
  watch_->end = reinterpret_cast<uintptr_t>(data_) + size_;
  watch_->begin = reinterpret_cast<uintptr_t>(data_);
}

void MappedFile::require_whole() const {
  if (watch_ && watch_->torn) fail("io", path_, kShrunk);
}

// ---------------------------------------------------------------- files in memory

size_t bytes_without(const MappedFile& file, const std::vector<MappedFile::Span>& without) {
  size_t bytes = file.size();
  for (const MappedFile::Span& span : without) bytes -= span.end - span.begin;
  return bytes;
}

bool load_files(const std::vector<std::shared_ptr<const MappedFile>>& files, bool if_room,
                const std::vector<std::vector<MappedFile::Span>>& without) {
  const auto left_out = [&](size_t i) { return i < without.size() ? without[i] : std::vector<MappedFile::Span>(); };
  size_t bytes = 0;
  for (size_t i = 0; i < files.size(); ++i) bytes += bytes_without(*files[i], left_out(i));
  if (if_room && system_memory().free / 2 < bytes) return false;
  for (size_t i = 0; i < files.size(); ++i) files[i]->load(left_out(i));
  return true;
}

}  // namespace qeng
