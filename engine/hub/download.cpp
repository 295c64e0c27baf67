#include "engine/hub/download.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/hub/connection.h"
#include "engine/hub/digest.h"

namespace qeng {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kRoom = uint64_t{64} << 20;  // bytes of the disk that we leave free

std::optional<uint64_t> number(const std::string& text) {
  if (text.empty() || text.size() > 18 || text.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return std::stoull(text);
}

// W/"abc" and "abc" are abc.
std::string plain_etag(std::string etag) {
  if (etag.rfind("W/", 0) == 0) etag.erase(0, 2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
  return etag;
}

// The part of a blob that has come: grows at its end, is cut back to nothing where it cannot be gone on from.
class Part {
 public:
  explicit Part(std::string path) : path_(std::move(path)) {
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    struct stat info {};
    if (fd_ < 0 || ::fstat(fd_, &info) != 0) refuse("cannot be opened");
    size_ = static_cast<uint64_t>(info.st_size);
  }
  ~Part() { ::close(fd_); }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  uint64_t size() const { return size_; }
  void clear() {
    if (::ftruncate(fd_, 0) != 0) refuse("cannot be emptied");
    size_ = 0;
  }
  void add(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(size_));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) refuse("cannot be written");
      size_ += static_cast<uint64_t>(n);
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }
  void read_into(Digest& digest, const std::function<void()>& tick) const {
    std::vector<char> block(1 << 20);
    for (uint64_t at = 0; at < size_;) {
      const ssize_t n = ::pread(fd_, block.data(), block.size(), static_cast<off_t>(at));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) refuse("cannot be read");
      digest.add({block.data(), static_cast<size_t>(n)});
      at += static_cast<uint64_t>(n);
      tick();
    }
  }
  void commit(const std::string& to) {
    if (::fsync(fd_) != 0) refuse("cannot be flushed to the disk");
    if (::rename(path_.c_str(), to.c_str()) != 0) refuse("cannot be put in place");
  }
  [[noreturn]] void refuse(const char* what) const { fail("io", path_, ": ", what, ": ", std::strerror(errno)); }

 private:
  std::string path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

class Download {
 public:
  Download(HubConnection& connection, const HubCache& cache, RepoKind kind, const std::string& repo,
           const std::string& commit, const HubFile& file, const HubWatch& watch)
      : connection_(connection), cache_(cache), commit_(commit), file_(file), watch_(watch), size_(file.size) {
    url_ = (kind == RepoKind::dataset ? "/datasets/" : "/") + escape_path(repo) + "/resolve/" + commit + "/" +
           escape_path(file.path);
    what_ = repo + "/" + file.path;
  }

  bool run() {
    ask();
    const FileLock lock(cache_.lock(etag_), [&] { tell("another process is downloading it"); });
    std::error_code error;
    const std::string blob = cache_.blob(etag_);
    if (!fs::is_regular_file(blob, error) || (size_ && fs::file_size(blob, error) != *size_)) download(blob);
    cache_.link(commit_, file_.path, etag_);
    return !hash_.empty();
  }

 private:
  void tell(const std::string& note) {
    if (watch_) watch_({done_, size_, note});
  }
  HubConnection::Tick tick() {
    return [this](const std::string& note) { tell(note); };
  }

  // The name of its content, its size, and that it is of the commit.
  void ask() {
    HttpResponse head;
    connection_.insist(
        [&](bool&) {
          head = connection_.once(
              url_, what_, true, 0, true, [](const HttpResponse&, std::string_view) {}, tick());
          return true;
        },
        tick());
    if (const std::string commit = head.header("x-repo-commit"); !commit.empty() && commit != commit_)
      fail("format", what_, ": the hub answers with commit ", commit.substr(0, 80), " where ", commit_,
           " was asked for");
    etag_ = plain_etag(head.header(head.headers.count("x-linked-etag") ? "x-linked-etag" : "etag"));
    if (etag_.empty()) etag_ = file_.hash;
    check_etag(etag_);
    hash_ = is_hex(etag_, 64) || is_hex(etag_, 40) ? etag_ : file_.hash;
    if (!file_.hash.empty() && hash_ != file_.hash)
      fail("format", what_, ": the hub's list says that its hash is ", file_.hash, ", its header says ", hash_);
    auto size = number(head.header("x-linked-size"));
    if (!size && head.status == 200) size = number(head.header("content-length"));
    if (size && size_ && *size != *size_)
      fail("format", what_, ": the hub's list says that it has ", *size_, " bytes, its header says ", *size);
    if (size) size_ = size;
    if (!size_ && hash_.empty())
      fail("format", what_,
           ": the hub tells neither its size nor its hash, so it could not be known to be whole: refused");
    if (!size_ && is_hex(hash_, 40))
      fail("format", what_, ": the hub tells no size, which Git's hash of it needs: refused");
  }

  void check_room(uint64_t here) const {
    const uint64_t room = free_bytes(cache_.blob("")), needed = size_ && *size_ > here ? *size_ - here : 0;
    if (needed > 0 && (needed > room || room - needed < kRoom))
      fail("io", what_, " needs ", needed / 1000000, " MB more, and ", room / 1000000, " MB are free at ",
           cache_.blob(""), ": make room, or set HF_HOME to a folder on another disk");
  }

  void download(const std::string& blob) {
    std::error_code error;
    fs::create_directories(fs::path(blob).parent_path(), error);
    if (error) fail("io", blob, ": its folder cannot be created: ", error.message());
    Part part(blob + ".incomplete");
    if (size_ && part.size() > *size_) part.clear();
    check_room(part.size());
    for (int wrong = 0;; ++wrong) {
      Digest digest(hash_, size_.value_or(0));
      done_ = most_ = part.size();
      part.read_into(digest, [&] { tell(""); });
      connection_.insist([&](bool& progress) { return transfer(part, digest, progress); }, tick());
      const std::string sum = digest.finish();
      if (sum == hash_) break;
      part.clear();
      // A part left by another program, or a host that went on from another file, is worth one whole download more.
      if (wrong > 0)
        fail("format", what_, ": what arrives has the hash ", sum, ", the hub says ", hash_,
             ": damaged on its way, or changed");
    }
    part.commit(blob);
  }

  // One request for what is missing. True once all is here.
  bool transfer(Part& part, Digest& digest, bool& progress) {
    if (size_ && part.size() == *size_) return true;
    const uint64_t from = part.size();
    bool begun = false;
    const auto sink = [&](const HttpResponse& response, std::string_view bytes) {
      if (!begun) begin(response, part, digest);
      begun = true;
      if (size_ && part.size() + bytes.size() > *size_)
        fail("format", what_, ": more bytes arrive than the ", *size_, " that the hub says it has: refused");
      part.add(bytes);
      digest.add(bytes);
      done_ = part.size();
      if (done_ > most_) progress = true, most_ = done_;  // not where a restart only repeats what had come before
    };
    const HttpResponse response = connection_.once(url_, what_, false, from, false, sink, tick());
    if (response.status == 416) restart(part, digest);  // the part is longer than the file: it is none of it
    if (!size_ && response.status == 200) size_ = part.size();
    return size_ && part.size() == *size_;
  }

  // Does the body continue the part, or begin anew?
  void begin(const HttpResponse& response, Part& part, Digest& digest) {
    if (!response.header("content-encoding").empty() && response.header("content-encoding") != "identity")
      fail("format", what_, ": arrives compressed as ", response.header("content-encoding").substr(0, 40),
           ", which was not asked for");
    if (part.size() == 0 && response.status == 200) return;
    const std::string range = response.header("content-range"), expected = "bytes " + std::to_string(part.size()) + "-";
    if (response.status == 206 && range.rfind(expected, 0) == 0) return;
    if (response.status == 206) {
      restart(part, digest);
      throw TryAgain("'" + range.substr(0, 60) + "' arrives where '" + expected + "' was asked for", -1);
    }
    restart(part, digest);  // 200: the range was ignored, and all of it comes
  }

  void restart(Part& part, Digest& digest) {
    part.clear();
    digest = Digest(hash_, size_.value_or(0));
    done_ = 0;
  }

  HubConnection& connection_;
  const HubCache& cache_;
  const std::string commit_;
  const HubFile& file_;
  const HubWatch& watch_;
  std::optional<uint64_t> size_;
  std::string url_, what_, etag_, hash_;
  uint64_t done_ = 0, most_ = 0;
};

}  // namespace

bool download_file(HubConnection& connection, const HubCache& cache, RepoKind kind, const std::string& repo,
                   const std::string& commit, const HubFile& file, const HubWatch& watch) {
  return Download(connection, cache, kind, repo, commit, file, watch).run();
}

}  // namespace qeng
