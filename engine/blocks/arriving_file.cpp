#include "engine/blocks/arriving_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/blocks/partial_file.h"
#include "kernels/error.h"

namespace qeng {
namespace {

constexpr std::chrono::milliseconds kLook(5);  // between two looks at the notes

class ArrivingFile : public Arrival {
 public:
  ArrivingFile(const std::string& path, uint64_t size, int noted_fd, int wanted_fd)
      : path_(path),
        noted_fd_(noted_fd),
        wanted_fd_(wanted_fd),
        here_((size + kFileBlock - 1) / kFileBlock),
        asked_(here_.size()) {}
  ~ArrivingFile() override {
    ::close(noted_fd_);
    if (wanted_fd_ >= 0) ::close(wanted_fd_);
  }

  void wait(uint64_t first, uint64_t end) override {
    if (first >= end || here(first, end)) return;
    look();
    expect(first, end, true);
    for (bool received = true; !here(first, end); look()) {
      if (!received)
        fail(
            "network", path_, ": bytes ", first, " to ", end,
            " have not come, and nobody receives them any more, of which the receiver's log says why; what has come is "
            "kept, and who begins again goes on from there");
      received = receiver();  // if not, its last notes are read once more
      if (received) std::this_thread::sleep_for(kLook);
    }
  }

  // Asks once for what is not here, or again for what is needed next.
  void expect(uint64_t first, uint64_t end, bool next) override {
    for (uint64_t i = first / kFileBlock; i * kFileBlock < end && i < here_.size(); ++i) {
      if (here_[i].load(std::memory_order_acquire) || (asked_[i].exchange(true) && !next)) continue;
      const std::string line = std::to_string(i) + (next ? "!\n" : "\n");
      if (wanted_fd_ >= 0) static_cast<void>(!::write(wanted_fd_, line.data(), line.size()));  // else in its turn
    }
  }

 private:
  bool here(uint64_t first, uint64_t end) const {
    for (uint64_t i = first / kFileBlock; i * kFileBlock < end && i < here_.size(); ++i)
      if (!here_[i].load(std::memory_order_acquire)) return false;
    return true;
  }

  void look() {
    const std::lock_guard lock(mutex_);
    const std::vector<bool> noted = read_notes(noted_fd_, here_.size());
    for (uint64_t i = 0; i < noted.size(); ++i)
      if (noted[i]) here_[i].store(true, std::memory_order_release);
  }

  // Does somebody hold the lock that a receiver holds?
  bool receiver() {
    const std::lock_guard lock(mutex_);
    if (::flock(noted_fd_, LOCK_SH | LOCK_NB) != 0) return true;
    ::flock(noted_fd_, LOCK_UN);
    return false;
  }

  const std::string path_;
  const int noted_fd_, wanted_fd_;
  std::mutex mutex_;
  std::vector<std::atomic<bool>> here_, asked_;
};

}  // namespace

std::shared_ptr<Arrival> arriving_file(const std::string& path) {
  if (!path.ends_with(".part")) return nullptr;
  const std::string stem = path.substr(0, path.size() - 5);
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return nullptr;
  const int noted = ::open((stem + ".noted").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (noted < 0) return nullptr;
  const int wanted = ::open((stem + ".wanted").c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  return std::make_shared<ArrivingFile>(path, static_cast<uint64_t>(info.st_size), noted, wanted);
}

}  // namespace qeng
