#include "engine/hub/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/formats/atomic_file.h"
#include "engine/hub/digest.h"
#include "kernels/error.h"

namespace qeng {
namespace {

namespace fs = std::filesystem;

const char kNameCharacters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";

bool is_name(const std::string& text) {  // one part of "org/name"
  return !text.empty() && text.size() <= 96 && text.find_first_not_of(kNameCharacters) == std::string::npos &&
         text.front() != '-' && text.front() != '.' && text.back() != '-' && text.back() != '.' &&
         text.find("--") == std::string::npos && text.find("..") == std::string::npos;
}

// A server's words, fit for a terminal.
std::string shown(std::string text) {
  text.resize(std::min<size_t>(text.size(), 120));
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
  return text;
}

void make_folders(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail("io", path, ": cannot be created: ", error.message(), "; HF_HOME names another place");
}

std::string parent(const std::string& path) { return fs::path(path).parent_path().string(); }

}  // namespace

void check_repo(const std::string& repo) {
  const size_t slash = repo.find('/');
  const bool good =
      slash == std::string::npos ? is_name(repo) : is_name(repo.substr(0, slash)) && is_name(repo.substr(slash + 1));
  if (!good) fail("value", "'", repo, "' is no name of a repository; expected org/name");
}

void check_revision(const std::string& revision) {
  const bool good = !revision.empty() && revision.size() <= 200 && revision.find("..") == std::string::npos &&
                    revision.find("//") == std::string::npos && revision.front() != '/' && revision.back() != '/' &&
                    revision.front() != '.' && revision.find("/.") == std::string::npos &&
                    revision.find_first_not_of(std::string(kNameCharacters) + "/+") == std::string::npos;
  if (!good) fail("value", "'", revision, "' is no revision; expected a branch, a tag or a commit");
}

void check_file_path(const std::string& path, const char* who) {
  const auto refuse = [&](const char* why) {
    fail("format", who, " names a file '", shown(path), "', which ", why, ": refused");
  };
  if (path.empty() || path.size() > 1024) refuse("is empty or longer than 1024 bytes");
  for (const unsigned char c : path)
    if (c < 32 || c == 127 || c == '\\') refuse("holds a control character or a backslash");
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    const std::string part = path.substr(at, end - at);
    if (part.empty() || part == "." || part == "..") refuse("leads out of its folder");
    if (part.size() > 240) refuse("has a part longer than 240 bytes");
    at = end + 1;
  }
}

void check_commit(const std::string& commit) {
  if (!is_hex(commit, 40)) fail("format", "the hub gives '", shown(commit), "' as the commit; expected 40 hex digits");
}

void check_etag(const std::string& etag) {
  const bool good = !etag.empty() && etag.size() <= 128 && etag.front() != '.' &&
                    etag.find_first_not_of(kNameCharacters) == std::string::npos;
  if (!good) fail("format", "the hub gives '", shown(etag), "' as a file's ETag, which is no fit name: refused");
}

HubCache::HubCache(const std::string& root, RepoKind kind, const std::string& repo) : root_(root) {
  check_repo(repo);
  name_ = kind == RepoKind::model ? "models--" : "datasets--";
  for (const char c : repo) name_ += c == '/' ? "--" : std::string(1, c);
  folder_ = root_ + "/" + name_;
}

std::string HubCache::snapshot(const std::string& commit) const { return folder_ + "/snapshots/" + commit; }
std::string HubCache::blob(const std::string& etag) const { return folder_ + "/blobs/" + etag; }
std::string HubCache::lock(const std::string& etag) const { return root_ + "/.locks/" + name_ + "/" + etag + ".lock"; }

std::string HubCache::commit_of(const std::string& revision) const {
  if (is_hex(revision, 40)) return fs::is_directory(snapshot(revision)) ? revision : "";
  std::ifstream file(folder_ + "/refs/" + revision);
  std::string commit;
  file >> commit;
  return is_hex(commit, 40) && fs::is_directory(snapshot(commit)) ? commit : "";
}

void HubCache::set_commit(const std::string& revision, const std::string& commit) const {
  if (revision == commit) return;
  const std::string path = folder_ + "/refs/" + revision;
  make_folders(parent(path));
  write_file_atomically(path, commit);
}

void HubCache::link(const std::string& commit, const std::string& path, const std::string& etag) const {
  const std::string pointer = snapshot(commit) + "/" + path;
  make_folders(parent(pointer));
  std::string up = "../../";
  for (const char c : path)
    if (c == '/') up += "../";
  const std::string target = up + "blobs/" + etag, temporary = pointer + ".tmp-" + std::to_string(::getpid());
  ::unlink(temporary.c_str());
  if (::symlink(target.c_str(), temporary.c_str()) != 0)
    fail("io", pointer, ": cannot make a link: ", std::strerror(errno),
         "; HF_HOME has to lie on a file system with links");
  if (::rename(temporary.c_str(), pointer.c_str()) != 0) {
    const int reason = errno;
    ::unlink(temporary.c_str());
    fail("io", pointer, ": cannot be put in place: ", std::strerror(reason));
  }
}

uint64_t free_bytes(const std::string& path) {
  for (fs::path at = fs::absolute(path);; at = at.parent_path()) {
    struct statvfs room {};
    if (::statvfs(at.c_str(), &room) == 0) return uint64_t{room.f_bavail} * room.f_frsize;
    if (errno != ENOENT || at == at.root_path()) fail("io", at.string(), ": ", std::strerror(errno));
  }
}

FileLock::FileLock(const std::string& path, const std::function<void()>& wait) {
  make_folders(parent(path));
  for (;;) {
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0664);
    if (fd_ < 0) fail("io", path, ": cannot be opened: ", std::strerror(errno));
    try {
      while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) fail("io", path, ": cannot be locked: ", std::strerror(errno));
        ::usleep(100000);
        wait();
      }
    } catch (...) {
      ::close(fd_);
      throw;
    }
    // Whoever held it may have deleted it: a lock on a name that is gone keeps nobody out.
    struct stat held {
    }, named{};
    if (::fstat(fd_, &held) == 0 && ::stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
        held.st_dev == named.st_dev)
      return;
    ::close(fd_);
  }
}

FileLock::~FileLock() { ::close(fd_); }

}  // namespace qeng
