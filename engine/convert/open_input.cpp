#include "engine/convert/open_input.h"

#include <bzlib.h>
#include <fcntl.h>
#include <lzma.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/error.h"

namespace qeng {
namespace {
constexpr size_t kRawBytes = 256 << 10;     // compressed bytes held at a time
constexpr size_t kHeadBytes = 8;            // as long as the longest magic number below
constexpr size_t kIdentityBytes = 1 << 20;  // enough that two exports of one program differ
constexpr const char* kArrowHelp =
    ": is an Arrow file, which is not read; make Parquet of it, for example with: python3 -c \"import pyarrow.feather, "
    "pyarrow.parquet; "
    "pyarrow.parquet.write_table(pyarrow.feather.read_table('IN.arrow'), 'OUT.parquet')\"";

// A file as it lies on the disk, or standard input; its first bytes may be looked at before they are read.
class RawFile {
 public:
  explicit RawFile(const std::string& name) : path(name == "-" ? "standard input" : name), owned_(name != "-") {
    descriptor_ = owned_ ? ::open(path.c_str(), O_RDONLY | O_CLOEXEC) : STDIN_FILENO;
    if (descriptor_ < 0) fail("io", path, ": cannot be read: ", std::strerror(errno));
    struct stat status {};
    if (::fstat(descriptor_, &status) == 0 && S_ISDIR(status.st_mode)) {
      close();
      fail("io", path, ": is a folder; give the files in it one by one");
    }
    while (head_.size() < kHeadBytes) {
      char some[kHeadBytes];
      const size_t n = read_some(some, kHeadBytes - head_.size());
      if (n == 0) break;
      head_.append(some, n);
    }
  }
  RawFile(RawFile&& other) noexcept
      : path(std::move(other.path)),
        descriptor_(std::exchange(other.descriptor_, -1)),
        owned_(other.owned_),
        head_(std::move(other.head_)) {}
  ~RawFile() { close(); }

  bool begins(std::string_view magic) const { return head_.compare(0, magic.size(), magic) == 0; }

  size_t read(char* to, size_t bytes) {
    size_t n = std::min(bytes, head_.size());
    if (n) {
      std::memcpy(to, head_.data(), n);
      head_.erase(0, n);
    } else {
      n = read_some(to, bytes);
    }
    consumed += n;
    return n;
  }

  bool seek_forward(uint64_t bytes) {  // false where the file cannot seek
    const uint64_t rest = bytes - std::min<uint64_t>(bytes, head_.size());
    if (::lseek(descriptor_, static_cast<off_t>(rest), SEEK_CUR) < 0) return false;
    head_.erase(0, bytes - rest);
    consumed += bytes;
    return true;
  }

  std::string path;
  uint64_t consumed = 0;

 private:
  void close() {
    if (owned_ && descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
  }
  size_t read_some(char* to, size_t bytes) {
    for (;;) {
      const ssize_t n = ::read(descriptor_, to, bytes);
      if (n >= 0) return static_cast<size_t>(n);
      if (errno != EINTR) fail("io", path, ": cannot be read: ", std::strerror(errno));
    }
  }
  int descriptor_ = -1;
  bool owned_;
  std::string head_;
};

class PlainSource final : public InputSource {
 public:
  explicit PlainSource(RawFile file) : file_(std::move(file)) {}
  size_t read(char* to, size_t bytes) override { return file_.read(to, bytes); }
  void skip(uint64_t bytes) override {
    if (!file_.seek_forward(bytes)) InputSource::skip(bytes);
  }
  uint64_t consumed() const override { return file_.consumed; }

 private:
  RawFile file_;
};

class GzipSource final : public InputSource {
 public:
  explicit GzipSource(RawFile file) : file_(std::move(file)), raw_(kRawBytes) {
    if (inflateInit2(&stream_, 15 + 16) != Z_OK) fail("memory", file_.path, ": zlib could not start");
  }
  ~GzipSource() override { inflateEnd(&stream_); }
  uint64_t consumed() const override { return file_.consumed; }

  size_t read(char* to, size_t bytes) override {
    const auto wanted = static_cast<uInt>(std::min<size_t>(bytes, 1 << 30));  // zlib counts in 32 bits
    stream_.next_out = reinterpret_cast<Bytef*>(to);
    stream_.avail_out = wanted;
    while (wanted > 0 && stream_.avail_out == wanted) {
      if (stream_.avail_in == 0 && !refill()) return 0;
      inside_ = true;
      const int status = inflate(&stream_, Z_NO_FLUSH);
      if (status == Z_STREAM_END) {  // members laid end to end are one file
        inside_ = false;
        inflateReset(&stream_);
      } else if (status != Z_OK && status != Z_BUF_ERROR) {
        fail("format", file_.path, ": damaged gzip data: ", stream_.msg ? stream_.msg : "no reason given");
      }
    }
    return wanted - stream_.avail_out;
  }

 private:
  bool refill() {
    stream_.next_in = reinterpret_cast<Bytef*>(raw_.data());
    stream_.avail_in = static_cast<uInt>(file_.read(raw_.data(), raw_.size()));
    if (stream_.avail_in == 0 && inside_) fail("format", file_.path, ": the gzip data ends early: the file is cut off");
    return stream_.avail_in > 0;
  }
  RawFile file_;
  z_stream stream_{};
  std::vector<char> raw_;
  bool inside_ = false;  // a member has begun and not ended
};

class Bzip2Source final : public InputSource {
 public:
  explicit Bzip2Source(RawFile file) : file_(std::move(file)), raw_(kRawBytes) { start(); }
  ~Bzip2Source() override { BZ2_bzDecompressEnd(&stream_); }
  uint64_t consumed() const override { return file_.consumed; }

  size_t read(char* to, size_t bytes) override {
    const auto wanted = static_cast<unsigned>(std::min<size_t>(bytes, 1 << 30));
    stream_.next_out = to;
    stream_.avail_out = wanted;
    while (wanted > 0 && stream_.avail_out == wanted) {
      if (stream_.avail_in == 0) {
        stream_.next_in = raw_.data();
        stream_.avail_in = static_cast<unsigned>(file_.read(raw_.data(), raw_.size()));
        if (stream_.avail_in == 0 && inside_)
          fail("format", file_.path, ": the bzip2 data ends early: the file is cut off");
        if (stream_.avail_in == 0) return 0;
      }
      inside_ = true;
      const int status = BZ2_bzDecompress(&stream_);
      if (status == BZ_STREAM_END) {  // streams laid end to end are one file
        inside_ = false;
        const bz_stream rest = stream_;
        BZ2_bzDecompressEnd(&stream_);
        start();
        stream_.next_in = rest.next_in, stream_.avail_in = rest.avail_in;
        stream_.next_out = rest.next_out, stream_.avail_out = rest.avail_out;
      } else if (status != BZ_OK) {
        fail("format", file_.path, ": damaged bzip2 data");
      }
    }
    return wanted - stream_.avail_out;
  }

 private:
  void start() {
    stream_ = {};
    if (BZ2_bzDecompressInit(&stream_, 0, 0) != BZ_OK) fail("memory", file_.path, ": bzip2 could not start");
  }
  RawFile file_;
  bz_stream stream_{};
  std::vector<char> raw_;
  bool inside_ = false;  // a stream has begun and not ended
};

class XzSource final : public InputSource {
 public:
  explicit XzSource(RawFile file) : file_(std::move(file)), raw_(kRawBytes) {
    if (lzma_stream_decoder(&stream_, kMostXzMemory, LZMA_CONCATENATED) != LZMA_OK)
      fail("memory", file_.path, ": xz could not start");
  }
  ~XzSource() override { lzma_end(&stream_); }
  uint64_t consumed() const override { return file_.consumed; }

  size_t read(char* to, size_t bytes) override {
    stream_.next_out = reinterpret_cast<uint8_t*>(to);
    stream_.avail_out = bytes;
    while (bytes > 0 && stream_.avail_out == bytes && !ended_) {
      if (stream_.avail_in == 0 && !last_) {
        stream_.next_in = reinterpret_cast<const uint8_t*>(raw_.data());
        stream_.avail_in = file_.read(raw_.data(), raw_.size());
        last_ = stream_.avail_in == 0;
      }
      const lzma_ret status = lzma_code(&stream_, last_ ? LZMA_FINISH : LZMA_RUN);
      ended_ = status == LZMA_STREAM_END;
      if (status == LZMA_BUF_ERROR) fail("format", file_.path, ": the xz data ends early: the file is cut off");
      if (status == LZMA_MEMLIMIT_ERROR)
        fail("unsupported", file_.path, ": xz data that need over ", kMostXzMemory >> 20, " MiB to unpack");
      if (status != LZMA_OK && !ended_) fail("format", file_.path, ": damaged xz data");
    }
    return bytes - stream_.avail_out;
  }

 private:
  static constexpr uint64_t kMostXzMemory = uint64_t{256} << 20;  // xz -9 needs 65 MiB
  RawFile file_;
  lzma_stream stream_ = LZMA_STREAM_INIT;
  std::vector<char> raw_;
  bool last_ = false, ended_ = false;
};

class ZstdSource final : public InputSource {
 public:
  explicit ZstdSource(RawFile file) : file_(std::move(file)), stream_(ZSTD_createDStream()), raw_(kRawBytes) {
    if (!stream_) fail("memory", file_.path, ": zstd could not start");
  }
  ~ZstdSource() override { ZSTD_freeDStream(stream_); }
  uint64_t consumed() const override { return file_.consumed; }

  size_t read(char* to, size_t bytes) override {
    ZSTD_outBuffer out{to, bytes, 0};
    while (bytes > 0 && out.pos == 0) {
      if (in_.pos == in_.size && !full_ && !refill()) return 0;
      const size_t status = ZSTD_decompressStream(stream_, &out, &in_);
      if (ZSTD_isError(status)) fail("format", file_.path, ": damaged zstd data: ", ZSTD_getErrorName(status));
      inside_ = status != 0;
      full_ = inside_ && out.pos == out.size;
    }
    return out.pos;
  }

 private:
  bool refill() {
    in_ = {raw_.data(), file_.read(raw_.data(), raw_.size()), 0};
    if (in_.size == 0 && inside_) fail("format", file_.path, ": the zstd data ends early: the file is cut off");
    return in_.size > 0;
  }
  RawFile file_;
  ZSTD_DStream* stream_;
  std::vector<char> raw_;
  ZSTD_inBuffer in_{nullptr, 0, 0};
  bool inside_ = false;  // a frame has begun and not ended
  bool full_ = false;    // the last output had no room left: the decoder may hold more
};
}  // namespace

std::unique_ptr<InputSource> open_input(const std::string& path) {
  RawFile file(path);
  for (const SourceFormat* format : source_formats()) {
    if (!file.begins(format->magic)) continue;
    if (!readable_twice(path))
      fail("format", file.path, ": ", format->name, " is not read from its beginning on: give it as a file");
    return format->open(path);
  }
  if (file.begins("ARROW1")) fail("format", file.path, kArrowHelp);
  if (file.begins("QUBGPU")) fail("format", file.path, ": is a packet dataset already: train on it, or look into it");
  if (file.begins("\x1f\x8b")) return std::make_unique<GzipSource>(std::move(file));
  if (file.begins("\x28\xb5\x2f\xfd")) return std::make_unique<ZstdSource>(std::move(file));
  if (file.begins("BZh")) return std::make_unique<Bzip2Source>(std::move(file));
  if (file.begins(std::string_view("\xFD"
                                   "7zXZ\0",
                                   6)))
    return std::make_unique<XzSource>(std::move(file));
  return std::make_unique<PlainSource>(std::move(file));
}

bool readable_twice(const std::string& path) {
  struct stat status {};
  return path != "-" && (::stat(path.c_str(), &status) != 0 ||
                         !(S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode) || S_ISSOCK(status.st_mode)));
}

InputIdentity identify_input(const std::string& path) {
  InputIdentity identity;
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) fail("io", path, ": cannot be read: ", std::strerror(errno));
  identity.bytes = static_cast<uint64_t>(status.st_size);
  RawFile file(path);
  std::vector<char> head(kIdentityBytes);
  size_t have = 0;
  while (have < head.size()) {
    const size_t n = file.read(&head[have], head.size() - have);
    if (n == 0) break;
    have += n;
  }
  identity.head_hash = XXH3_64bits(head.data(), have);
  return identity;
}

}  // namespace qeng
