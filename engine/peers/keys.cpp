#include "engine/peers/keys.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "engine/formats/atomic_file.h"
#include "kernels/error.h"

namespace qeng {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostBytes = 64 << 10;  // of a certificate, which has some 300
constexpr size_t kMostName = 64;
constexpr const char* kNameCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";

bool is_name(const std::string& name) {
  return !name.empty() && name.size() <= kMostName && name.find_first_not_of(kNameCharacters) == name.npos &&
         std::strchr("._-", name[0]) == nullptr;
}

void check_name(const std::string& name) {
  if (!is_name(name))
    fail("value", "'", name, "' is no name of a peer: expected 1 to ", kMostName,
         " letters, digits, '.', '_' and '-', a letter or digit first");
}

std::string machine_name() {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  std::string name = std::string(host).substr(0, kMostName);
  for (char& c : name)
    if (!std::strchr(kNameCharacters, c)) c = '-';
  return is_name(name) ? name : "qeng";
}

void make_folder(const std::string& path) {
  std::error_code error;
  if (const fs::path parent = fs::path(path).parent_path(); !parent.empty()) fs::create_directories(parent, error);
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    fail("io", path, ": cannot be created: ", std::strerror(errno), "; QENG_KEYS names another folder");
}

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags) : fd_(::open(path.c_str(), flags | O_RDONLY | O_CLOEXEC)) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

// The certificate in a file. secret: nobody else may read it.
PeerCertificate read_certificate(const std::string& path, bool secret) {
  const Descriptor file(path, O_NONBLOCK);
  struct stat about {};
  if (file.get() < 0 || ::fstat(file.get(), &about) != 0) fail("io", path, ": cannot be read: ", std::strerror(errno));
  if (!S_ISREG(about.st_mode) || static_cast<size_t>(about.st_size) > kMostBytes)
    fail("format", path, ": is no certificate: a file of at most ", kMostBytes, " bytes is");
  if (secret && (about.st_mode & 077) != 0)
    fail("io", path,
         ": others may read or write it, and it has the secret key: chmod 600 it; who has read it can come ",
         "as this machine, so that new keys are safer");
  std::string text(static_cast<size_t>(about.st_size), '\0');
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return parse_certificate(text, path);
}

}  // namespace

std::string PeerKeys::default_folder() {
  if (const char* given = std::getenv("QENG_KEYS"); given && *given) return given;
  const char* home = std::getenv("HOME");
  if (!home || !*home) fail("io", "HOME is not set: set it, or QENG_KEYS, to say where keys are");
  return std::string(home) + "/.config/qeng/keys";
}

PeerKeys::PeerKeys(const std::string& folder, const std::string& name) : folder_(folder) {
  if (!name.empty()) check_name(name);
  make_folder(folder_);
  make_folder(folder_ + "/known");
  const std::string path = folder_ + "/own";
  const Descriptor held(folder_, O_DIRECTORY);  // of two processes that come first, one makes the pair
  ::flock(held.get(), LOCK_EX);
  if (std::error_code ignored; !fs::exists(fs::symlink_status(path, ignored))) {
    const PeerCertificate made = peer_library().new_certificate(name.empty() ? machine_name() : name);
    AtomicFile file(path, 0600);
    file.write(certificate_text(made));
    file.commit();
    made_ = true;
  }
  own_ = read_certificate(path, true);
  if (own_.secret_key.empty()) fail("format", path, ": has no secret-key; remove it, and a new pair is made");
  if (peer_library().public_key_of(own_.secret_key) != own_.public_key)
    fail("format", path, ": its secret-key is not that of its public-key");
  if (!is_name(own_.name)) own_.name = machine_name();
  if (!name.empty() && own_.name != name)
    fail("value", path, ": is the pair of ", own_.name, ", not of ", name, "; remove it for a new one");
}

std::map<std::string, std::string> PeerKeys::read(std::string* problem) const {
  std::map<std::string, std::string> keys;
  std::error_code error;
  for (fs::directory_iterator entry(folder_ + "/known", error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.find(".tmp-") != name.npos) continue;  // of another process, being written
    try {
      if (!is_name(name)) fail("format", entry->path().string(), ": its name is none of a peer; rename or remove it");
      keys[name] = read_certificate(entry->path().string(), false).public_key;
    } catch (const Error& wrong) {
      *problem = wrong.what();
    }
  }
  if (error) *problem = folder_ + "/known: cannot be read: " + error.message();
  return keys;
}

std::map<std::string, std::string> PeerKeys::known() const {
  std::string problem;
  std::map<std::string, std::string> keys = read(&problem);
  if (!problem.empty()) fail("format", problem);
  return keys;
}

void PeerKeys::know(const std::string& name, const std::string& key) {
  check_name(name);
  const std::string path = folder_ + "/known/" + name;
  if (!is_peer_key(key))
    fail("value", "the key of ", name, " is not one of 40 characters in Z85, as q.keys().public is");
  if (key == own_.public_key) fail("value", "the key of ", name, " is this machine's own, ", own_.name);
  const Descriptor held(folder_, O_DIRECTORY);
  ::flock(held.get(), LOCK_EX);
  for (const auto& [other, others] : known()) {
    if (other == name && others == key) return;
    if (other == name) fail("value", "another key of ", name, " is known: forget it first");
    if (others == key) fail("value", "the key of ", name, " is known as that of ", other);
  }
  write_file_atomically(path, certificate_text({name, key, ""}));
}

void PeerKeys::forget(const std::string& name) {
  check_name(name);
  if (::unlink((folder_ + "/known/" + name).c_str()) != 0)
    fail("value", "no key of ", name, " is known: ", std::strerror(errno));
}

std::string PeerKeys::name_of(const std::string& key) const {
  if (key == own_.public_key) return own_.name;
  const std::lock_guard<std::mutex> lock(lock_);
  struct stat about {};
  if (::stat((folder_ + "/known").c_str(), &about) != 0) return "";
  const timespec changed = about.st_mtim;
  if (changed.tv_sec != read_at_.tv_sec || changed.tv_nsec != read_at_.tv_nsec) {
    std::string ignored;
    names_.clear();
    for (const auto& [name, each] : read(&ignored)) names_[each] = name;
    // A file system's clock is coarse: what changes right after this reading may leave the same time.
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    read_at_ = now.tv_sec - changed.tv_sec > 1 ? changed : timespec{};
  }
  const auto found = names_.find(key);
  return found == names_.end() ? "" : found->second;
}

std::string PeerKeys::key_of(const std::string& name_or_key) const {
  if (name_or_key == own_.name) return own_.public_key;
  const std::map<std::string, std::string> all = known();
  if (const auto found = all.find(name_or_key); found != all.end()) return found->second;
  if (!name_of(name_or_key).empty()) return name_or_key;
  fail("value", "'", name_or_key,
       "' is neither the name nor the key of a known peer: q.keys{know = {name =, public =}}");
}

}  // namespace qeng
