#include "engine/blocks/manifest.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "engine/formats/atomic_file.h"
#include "engine/hub/cache.h"
#include "kernels/error.h"

namespace qeng {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kManifestFormat = "qeng blocks 1", kFolderFormat = "qeng folder 1";
constexpr uint64_t kMaxListed = 1'000'000;  // files of a folder
constexpr uint64_t kKept = 8;               // blocks: smaller files are read sooner than an entry is written and synced
// A file that was written so shortly before may be written again within one tick of its file system's clock.
constexpr int64_t kSettled = 2'000'000'000;  // ns: FAT's

struct OpenFile {  // without waiting for who writes to a pipe, which is refused
  explicit OpenFile(const std::string& path) : fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
    if (fd < 0) fail("io", path, ": cannot be opened: ", std::strerror(errno));
    struct stat info {};
    if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
      ::close(fd);
      fail("io", path, ": is no regular file");
    }
  }
  ~OpenFile() { ::close(fd); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  struct stat status() const {
    struct stat info {};
    ::fstat(fd, &info);
    return info;
  }
  const int fd;
};

int64_t nanoseconds(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

// One line that is another as soon as the file is.
std::string identity(const struct stat& info) {
  return std::to_string(info.st_dev) + " " + std::to_string(info.st_ino) + " " + std::to_string(info.st_size) + " " +
         std::to_string(nanoseconds(info.st_mtim)) + " " + std::to_string(nanoseconds(info.st_ctim)) + "\n";
}

// Takes a line off the front; false where there is none.
bool take_line(std::string_view* text, std::string_view* line) {
  const size_t end = text->find('\n');
  if (end == std::string_view::npos) return false;
  *line = text->substr(0, end);
  text->remove_prefix(end + 1);
  return true;
}

// A number as to_string writes it, so that equal manifests are equal texts.
bool read_number(std::string_view text, uint64_t* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size() && std::to_string(*number) == text;
}

void require_hash(std::string_view text, const std::string& expected, const char* what) {
  const std::string hash = hex(sha256(text));
  if (hash != expected)
    fail("format", "a ", what, " of ", text.size(), " bytes has the hash ", hash, ", expected ", expected,
         ": it is damaged, or whoever gave it lies");
}

// An entry of the cache: the identity, the hash, the text.
bool find_kept(const std::string& entry, const std::string& identity, Manifest* found) {
  std::ifstream file(entry, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  std::string_view text = all, hash;
  if (!text.starts_with(identity)) return false;
  text.remove_prefix(identity.size());
  if (!take_line(&text, &hash)) return false;
  try {
    *found = parse_manifest(text, std::string(hash));
  } catch (const Error&) {  // damaged: it is made again
    return false;
  }
  return true;
}

// False where it cannot be written: there is no room, or no right.
bool keep(const std::string& cache, const std::string& entry, const std::string& identity, const Manifest& manifest) {
  try {
    fs::create_directories(cache);
    write_file_atomically(entry, identity + manifest.hash + "\n" + manifest.text());
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// What this process has read and could not keep.
class Known {
 public:
  bool find(const std::string& entry, const std::string& identity, Manifest* found) {
    const std::lock_guard lock(mutex_);
    const auto at = files_.find(entry);
    if (at == files_.end() || at->second.first != identity) return false;
    *found = at->second.second;
    return true;
  }
  void add(const std::string& entry, const std::string& identity, const Manifest& manifest) {
    const std::lock_guard lock(mutex_);
    files_[entry] = {identity, manifest};
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::pair<std::string, Manifest>> files_;  // by entry: identity and manifest
};

Known& known() {
  static Known files;
  return files;
}

}  // namespace

uint64_t Manifest::bytes(uint64_t index) const { return std::min(kFileBlock, size - index * kFileBlock); }

std::string Manifest::text() const {
  std::string text =
      std::string(kManifestFormat) + "\nsize " + std::to_string(size) + "\nblock " + std::to_string(kFileBlock) + "\n";
  text.reserve(text.size() + 65 * blocks.size());
  for (const Sha256& block : blocks) text += hex(block), text += '\n';
  return text;
}

Manifest manifest_of(const std::string& path, const std::string& cache, const BlockWatch& watch) {
  const OpenFile file(path);
  const struct stat before = file.status();
  Manifest manifest;
  manifest.size = static_cast<uint64_t>(before.st_size);
  if (manifest.size > kMaxBlocks * kFileBlock)
    fail("unsupported", path, ": has ", manifest.size, " bytes; peers exchange files of at most ",
         kMaxBlocks * kFileBlock, ": split it");
  const bool kept = !cache.empty() && manifest.size >= kKept * kFileBlock;
  const std::string entry = kept ? cache + "/" + hex(sha256(fs::canonical(path).string())).substr(0, 32) : "";
  Manifest found;
  if (kept && find_kept(entry, identity(before), &found) && found.size == manifest.size) return found;
  if (kept && known().find(entry, identity(before), &found)) return found;

  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  manifest.blocks = hash_blocks(file.fd, path, manifest.size, watch);
  manifest.hash = hex(sha256(manifest.text()));
  if (identity(file.status()) != identity(before))
    fail("io", path, ": has changed while it was read; try again when nothing writes to it");
  if (kept && nanoseconds(now) - nanoseconds(before.st_mtim) > kSettled &&
      !keep(cache, entry, identity(before), manifest))
    known().add(entry, identity(before), manifest);
  return manifest;
}

Manifest parse_manifest(std::string_view text, const std::string& expected) {
  require_hash(text, expected, "manifest");
  const auto refuse = [](const char* why) { fail("format", "a manifest ", why, ": made by another version of qeng?"); };
  Manifest manifest;
  manifest.hash = expected;
  std::string_view line;
  uint64_t block = 0;
  if (!take_line(&text, &line) || line != kManifestFormat) refuse("does not begin with 'qeng blocks 1'");
  if (!take_line(&text, &line) || !line.starts_with("size ") || !read_number(line.substr(5), &manifest.size))
    refuse("has no size");
  if (!take_line(&text, &line) || !line.starts_with("block ") || !read_number(line.substr(6), &block) ||
      block != kFileBlock)
    refuse("has blocks of another size than 1048576");
  if (manifest.size > kMaxBlocks * kFileBlock) refuse("is of a file of more than 2 TiB");
  const uint64_t count = (manifest.size + kFileBlock - 1) / kFileBlock;
  if (text.size() != 65 * count) refuse("has not as many blocks as its size says");
  manifest.blocks.resize(count);
  for (Sha256& hash : manifest.blocks)
    if (!take_line(&text, &line) || !read_hex(line, &hash)) refuse("has a hash that is no SHA-256");
  return manifest;
}

void read_block(const std::string& path, uint64_t index, const std::function<char*(size_t)>& place) {
  const OpenFile file(path);
  const auto size = static_cast<uint64_t>(file.status().st_size);
  if (index >= (size + kFileBlock - 1) / kFileBlock)
    fail("value", path, ": block ", index, " of a file of ", size, " bytes");
  const size_t bytes = std::min(kFileBlock, size - index * kFileBlock);
  if (!read_at(file.fd, index * kFileBlock, place(bytes), bytes))
    fail("io", path, ": block ", index, " cannot be read: ", errno ? std::strerror(errno) : "the file was cut");
}

void check_listed_path(const std::string& path) { check_file_path(path, "a peer"); }

std::string folder_text(std::vector<ListedFile> files) {
  std::sort(files.begin(), files.end(), [](const ListedFile& a, const ListedFile& b) { return a.path < b.path; });
  std::string text = std::string(kFolderFormat) + "\n";
  for (const ListedFile& file : files) text += file.hash + " " + std::to_string(file.size) + " " + file.path + "\n";
  parse_folder(text, hex(sha256(text)));
  return text;
}

std::vector<ListedFile> parse_folder(std::string_view text, const std::string& expected) {
  require_hash(text, expected, "list of a folder");
  std::string_view line;
  if (!take_line(&text, &line) || line != kFolderFormat)
    fail("format", "a list of a folder does not begin with 'qeng folder 1': made by another version of qeng?");
  std::vector<ListedFile> files;
  std::set<std::string, std::less<>> folders;
  while (!text.empty()) {
    Sha256 hash;
    ListedFile file;
    const size_t line_end = text.find('\n'), size_end = std::min(line_end, text.find(' ', 65));
    if (!take_line(&text, &line) || size_end == line_end || !read_hex(line.substr(0, 64), &hash) || line[64] != ' ' ||
        !read_number(line.substr(65, size_end - 65), &file.size) || file.size > kMaxBlocks * kFileBlock)
      fail("format", "line ", files.size() + 2, " of the list of a folder is not: hash, size, path");
    file.hash = line.substr(0, 64);
    file.path = line.substr(size_end + 1);
    check_listed_path(file.path);
    if (!files.empty() && files.back().path >= file.path)
      fail("format", "the list of a folder is not in the order of its paths at '", file.path, "'");
    for (size_t at = file.path.find('/'); at != std::string::npos; at = file.path.find('/', at + 1))
      folders.insert(file.path.substr(0, at));
    files.push_back(std::move(file));
    if (files.size() > kMaxListed) fail("format", "the list of a folder has more than ", kMaxListed, " files");
  }
  for (const ListedFile& file : files)
    if (folders.contains(file.path))
      fail("format", "the list of a folder has '", file.path, "' as a file and a folder");
  return files;
}

}  // namespace qeng
