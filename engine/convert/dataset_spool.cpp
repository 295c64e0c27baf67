#include "engine/convert/dataset_spool.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "kernels/error.h"

namespace qeng {
namespace {
constexpr size_t kBufferBytes = 1 << 20;  // written at a time: large enough for the disk's speed

// What the index file holds a record: the entry as the dataset will have it, and its hash.
struct SpoolEntry {
  IndexEntry entry;
  uint64_t hash;
};
static_assert(sizeof(SpoolEntry) == 32);

void sync_folder_of(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const int descriptor = ::open(folder.empty() ? "." : folder.c_str(), O_DIRECTORY | O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);  // some network file systems cannot: the file itself is synced all the same
  ::close(descriptor);
}
}  // namespace

// Appends through a buffer; reads back what was written before.
struct DatasetSpool::File {
  explicit File(const std::string& name) : path(name) {
    descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0) fail("io", path, ": cannot create: ", std::strerror(errno));
    if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      ::close(descriptor);
      fail("io", path, ": another process is writing it");
    }
    buffer.reserve(kBufferBytes);
  }
  ~File() { ::close(descriptor); }
  File(const File&) = delete;

  void truncate(uint64_t bytes) {
    if (::ftruncate(descriptor, static_cast<off_t>(bytes)) != 0 ||
        ::lseek(descriptor, static_cast<off_t>(bytes), SEEK_SET) < 0)
      fail("io", path, ": cannot be set to ", bytes, " bytes: ", std::strerror(errno));
  }
  void write(const void* data, size_t bytes) {
    if (buffer.size() + bytes > kBufferBytes) flush();
    if (bytes > kBufferBytes) return write_through(static_cast<const char*>(data), bytes);
    buffer.append(static_cast<const char*>(data), bytes);
  }
  void flush() {
    write_through(buffer.data(), buffer.size());
    buffer.clear();
  }
  void write_through(const char* data, size_t bytes) {
    while (bytes > 0) {
      const ssize_t n = ::write(descriptor, data, bytes);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("io", path, ": cannot write: ", std::strerror(errno));
      data += n, bytes -= static_cast<size_t>(n);
    }
  }
  void sync() {
    flush();
    if (::fdatasync(descriptor) != 0) fail("io", path, ": cannot flush to the disk: ", std::strerror(errno));
  }
  // False if the file ends before.
  bool read_at(uint64_t offset, void* to, size_t bytes) const {
    for (char* p = static_cast<char*>(to); bytes > 0;) {
      const ssize_t n = ::pread(descriptor, p, bytes, static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("io", path, ": cannot be read: ", std::strerror(errno));
      if (n == 0) return false;
      p += n, offset += static_cast<uint64_t>(n), bytes -= static_cast<size_t>(n);
    }
    return true;
  }

  std::string path;
  int descriptor;
  std::string buffer;
};

bool DatasetSpool::exists(const std::string& path) { return std::filesystem::exists(path + ".partial"); }

void DatasetSpool::remove(const std::string& path) {
  ::unlink((path + ".partial").c_str());
  ::unlink((path + ".partial.index").c_str());
}

DatasetSpool::DatasetSpool(const std::string& path, bool dedupe) : path_(path), dedupe_(dedupe) {
  if (std::filesystem::is_directory(path)) fail("io", path, ": is a folder, cannot be written as a file");
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (!folder.empty() && !std::filesystem::is_directory(folder))
    fail("io", path, ": cannot create: the folder ", folder, " does not exist");
  frames_ = std::make_unique<File>(path + ".partial");
  index_ = std::make_unique<File>(path + ".partial.index");
}

void DatasetSpool::begin() {
  frames_->truncate(0);
  index_->truncate(0);
  const std::string room(kHeaderBytes, '\0');
  frames_->write(room.data(), room.size());
}

DatasetSpool::~DatasetSpool() = default;

void DatasetSpool::hash_frames(const uint8_t* data, size_t bytes) {
  while (bytes > 0) {
    const size_t n = std::min(bytes, static_cast<size_t>(kBlockBytes) - block_bytes_);
    block_.update(data, n);
    data += n, bytes -= n, block_bytes_ += n;
    if (block_bytes_ < kBlockBytes) return;
    hashes_.push_back(block_.value());
    block_.reset();
    block_bytes_ = 0;
  }
}

void DatasetSpool::write_frames(const uint8_t* data, size_t bytes) {
  hash_frames(data, bytes);
  frames_->write(data, bytes);
}

size_t DatasetSpool::add(std::span<const uint8_t> frames, std::span<const SpooledRecord> records) {
  size_t duplicates = 0, at = 0, from = 0;  // from: frames not written yet
  for (const SpooledRecord& record : records) {
    if (dedupe_ && !seen_.insert(record.hash)) {
      write_frames(&frames[from], at - from);
      at += record.bytes, from = at;
      ++duplicates;
      continue;
    }
    const SpoolEntry entry{
        {header_.frames_bytes, record.tokens, record.loss_tokens, record.frames, record.src, record.dst, 0},
        record.hash};
    entries_.update(&entry, sizeof entry);
    index_->write(&entry, sizeof entry);
    at += record.bytes;
    header_.records += 1, header_.frames += record.frames, header_.frames_bytes += record.bytes;
    header_.tokens += record.tokens, header_.loss_tokens += record.loss_tokens;
    SourceCount& count = by_source_[record.src];
    count.records += 1, count.tokens += record.tokens, count.loss_tokens += record.loss_tokens;
  }
  if (at > from) write_frames(&frames[from], at - from);
  return duplicates;
}

nlohmann::json DatasetSpool::checkpoint() {
  frames_->sync();
  index_->sync();
  return {{"frames_bytes", header_.frames_bytes},
          {"records", header_.records},
          {"blocks_hash", xxh3(hashes_.data(), hashes_.size() * 8) ^ block_.value()},
          {"index_hash", entries_.value()}};
}

// The counts come from the index entries, the hashes from both files, read once through.
void DatasetSpool::go_on(const nlohmann::json& state) {
  const auto damaged = [&] {
    fail("format", path_, ".partial: is not what its journal says: it was changed or damaged; convert anew");
  };
  const uint64_t bytes = state.at("frames_bytes"), records = state.at("records");
  std::vector<SpoolEntry> entries(kBufferBytes / sizeof(SpoolEntry));
  for (uint64_t done = 0; done < records;) {
    const size_t n = static_cast<size_t>(std::min<uint64_t>(entries.size(), records - done));
    if (!index_->read_at(done * sizeof(SpoolEntry), entries.data(), n * sizeof(SpoolEntry))) damaged();
    entries_.update(entries.data(), n * sizeof(SpoolEntry));
    for (size_t i = 0; i < n; ++i) {
      const IndexEntry& entry = entries[i].entry;
      if (dedupe_) seen_.insert(entries[i].hash);
      header_.frames += entry.frames, header_.tokens += entry.tokens, header_.loss_tokens += entry.loss_tokens;
      SourceCount& count = by_source_[entry.src];
      count.records += 1, count.tokens += entry.tokens, count.loss_tokens += entry.loss_tokens;
    }
    done += n;
  }
  std::vector<uint8_t> block(kBlockBytes);
  for (uint64_t done = 0; done < bytes;) {
    const size_t n = static_cast<size_t>(std::min<uint64_t>(block.size(), bytes - done));
    if (!frames_->read_at(kHeaderBytes + done, block.data(), n)) damaged();
    hash_frames(block.data(), n);
    done += n;
  }
  header_.records = records, header_.frames_bytes = bytes;
  if (entries_.value() != state.at("index_hash") ||
      (xxh3(hashes_.data(), hashes_.size() * 8) ^ block_.value()) != state.at("blocks_hash"))
    damaged();
  frames_->truncate(kHeaderBytes + bytes);
  index_->truncate(records * sizeof(SpoolEntry));
}

void DatasetSpool::finish(nlohmann::json meta) {
  for (const auto& [src, count] : by_source_) {
    char name[8];
    std::snprintf(name, sizeof name, "0x%02X", unsigned{src});
    meta["counts"][name] = {{"records", count.records}, {"tokens", count.tokens}, {"loss_tokens", count.loss_tokens}};
  }
  const std::string text = meta.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMaxMetaBytes)
    fail("value", path_, ": the meta data of ", text.size(), " bytes is over ", kMaxMetaBytes);
  if (block_bytes_ > 0) hashes_.push_back(block_.value());

  const uint64_t end = kHeaderBytes + header_.frames_bytes;
  header_.index_offset = (end + 7) / 8 * 8;
  header_.hashes_offset = header_.index_offset + header_.records * sizeof(IndexEntry);
  header_.meta_offset = header_.hashes_offset + hashes_.size() * 8;
  header_.meta_bytes = text.size();
  RunningHash tail;
  const auto write = [&](const void* data, size_t bytes) {
    tail.update(data, bytes);
    frames_->write(data, bytes);
  };
  const std::string gap(header_.index_offset - end, '\0');
  frames_->write(gap.data(), gap.size());
  index_->flush();
  std::vector<SpoolEntry> entries(kBufferBytes / sizeof(SpoolEntry));
  for (uint64_t done = 0; done < header_.records;) {
    const size_t n = static_cast<size_t>(std::min<uint64_t>(entries.size(), header_.records - done));
    if (!index_->read_at(done * sizeof(SpoolEntry), entries.data(), n * sizeof(SpoolEntry)))
      fail("io", index_->path, ": has become shorter while it was in use");
    for (size_t i = 0; i < n; ++i) write(&entries[i].entry, sizeof(IndexEntry));
    done += n;
  }
  write(hashes_.data(), hashes_.size() * 8);
  write(text.data(), text.size());
  frames_->flush();
  header_.tail_hash = tail.value();
  const std::string head = header_bytes(header_);
  if (::pwrite(frames_->descriptor, head.data(), head.size(), 0) != static_cast<ssize_t>(head.size()))
    fail("io", frames_->path, ": cannot write: ", std::strerror(errno));
  if (::fsync(frames_->descriptor) != 0)
    fail("io", frames_->path, ": cannot flush to the disk: ", std::strerror(errno));
  if (::rename(frames_->path.c_str(), path_.c_str()) != 0)
    fail("io", "cannot rename ", frames_->path, " to ", path_, ": ", std::strerror(errno));
  sync_folder_of(path_);
  ::unlink(index_->path.c_str());
}

void DatasetSpool::remove() { remove(path_); }

}  // namespace qeng
