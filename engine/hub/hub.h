// Files of models and datasets from a Hugging Face-compatible hub, into the folder its tools share (cache.h).
//
// What arrives is checked: size, and SHA-256 or Git's SHA-1 where the hub gives one. A file appears whole or not at
// all; what a cut connection, Ctrl-C or a kill left of it (ETAG.incomplete) is gone on from. The token is shown to the
// hub alone, not to the hosts that it sends us to. Names, sizes and addresses that a server gives are not trusted.
//
// Errors: "network" where the hub cannot be reached or does not do its work; "io" where it refuses (no such repository,
// no access), or the disk does; "format" where its answers cannot be right; "value" for a wrong name.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/hub/cache.h"
#include "engine/hub/settings.h"

namespace qeng {

struct HubFile {
  std::string path;
  std::optional<uint64_t> size;
  std::string hash;  // SHA-256 or Git's SHA-1 in hex, "" where the list has none
};

struct HubListing {
  std::string commit, folder;  // the snapshot, which may not exist yet
  std::vector<HubFile> files;  // by path
};

// Called ten times a second, from the thread that asked. May throw, which ends the transfer and keeps what has come.
struct HubProgress {
  uint64_t done = 0;  // bytes of the file that are here
  std::optional<uint64_t> total;
  std::string note;  // what it waits for, "" while bytes come
};
using HubWatch = std::function<void(const HubProgress&)>;

class HubConnection;

class Hub {
 public:
  explicit Hub(HubSettings settings);
  ~Hub();
  const HubSettings& settings() const { return settings_; }

  // What the revision (a branch, a tag, a commit) holds now, asked of the hub.
  HubListing list(RepoKind kind, const std::string& repo, const std::string& revision, const HubWatch& watch);
  // What of it is on this machine; nothing where it was never fetched.
  std::optional<HubListing> cached(RepoKind kind, const std::string& repo, const std::string& revision) const;

  // One file of a commit; its path in the snapshot. A file that is there, of the right size, is not asked for again.
  // unverified, where given, becomes true if the hub gave nothing but a size to check it by.
  std::string fetch(RepoKind kind, const std::string& repo, const std::string& commit, const HubFile& file,
                    const HubWatch& watch, bool* unverified = nullptr);
  // Notes what the revision stands for, for cached(). After all its files, so that what cached() finds is whole.
  void pin(RepoKind kind, const std::string& repo, const std::string& revision, const std::string& commit) const;

 private:
  HubConnection& connection();  // Error("network") offline
  HubSettings settings_;
  std::unique_ptr<HubConnection> connection_;
};

}  // namespace qeng
