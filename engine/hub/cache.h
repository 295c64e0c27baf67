// The folder that Hugging Face's tools and qeng share:
//   HUB/models--ORG--NAME/blobs/ETAG             a file's content
//                        /refs/REVISION          the commit that a branch or tag stood for when it was last asked
//                        /snapshots/COMMIT/PATH  a relative link to the blob
//   HUB/.locks/models--ORG--NAME/ETAG.lock       held while a blob is written
// Names from a server are checked before they become paths: Error("format").
#pragma once
#include <cstdint>
#include <functional>
#include <string>

namespace qeng {

enum class RepoKind : uint8_t { model, dataset };

// Error("value") unless "org/name" (or a bare "name") and a branch, tag or commit, as the hub spells them.
void check_repo(const std::string& repo);
void check_revision(const std::string& revision);
// Error("format") unless relative, without "." and "..", printable, of lengths that a file system takes.
void check_file_path(const std::string& path, const char* who = "the hub");  // who names it
void check_commit(const std::string& commit);                                // 40 hex digits
void check_etag(const std::string& etag);                                    // fit for a file's name

class HubCache {
 public:
  HubCache(const std::string& root, RepoKind kind, const std::string& repo);

  std::string snapshot(const std::string& commit) const;
  std::string blob(const std::string& etag) const;
  std::string lock(const std::string& etag) const;
  std::string commit_of(const std::string& revision) const;  // "" where the revision was never fetched
  void set_commit(const std::string& revision, const std::string& commit) const;
  // Makes snapshots/COMMIT/PATH a relative link to the blob, in one step.
  void link(const std::string& commit, const std::string& path, const std::string& etag) const;

 private:
  std::string root_, name_, folder_;
};

// Bytes that may still be written where `path` is or will be.
uint64_t free_bytes(const std::string& path);

// An exclusive lock on a file, as other tools take it (flock). wait is called ten times a second until it is ours.
class FileLock {
 public:
  FileLock(const std::string& path, const std::function<void()>& wait);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace qeng
