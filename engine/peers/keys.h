// A folder of keys: `own`, this machine's pair (mode 0600), and known/NAME, the public key of each peer that may connect,
// dialed or dialing. Certificates as CZMQ's tools read them (zcert). Whoever has a copy of `own` is this machine, and may
// connect too: several processes of one machine share its folder.
//
// Names are 1 to 64 characters of A-Z, a-z, 0-9, '.', '_' and '-', and begin with none of the last three. Keys are in Z85,
// 40 characters. Files appear whole or not at all.
#pragma once
#include <sys/stat.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "engine/peers/peers.h"

namespace qeng {

class PeerKeys {
 public:
  static std::string default_folder();  // $QENG_KEYS, or ~/.config/qeng/keys

  // Reads the pair there, or makes one for `name` ("": the machine's name). Error("io") where others may read the secret
  // key; Error("format") for files that are no certificates.
  explicit PeerKeys(const std::string& folder, const std::string& name = "");
  const std::string& folder() const { return folder_; }
  const PeerCertificate& own() const { return own_; }
  bool made() const { return made_; }  // the pair was made just now

  std::map<std::string, std::string> known() const;  // key by name; Error("format") names a file that is none
  // Error("value") for a name or key that is none, or that is known with another key or name.
  void know(const std::string& name, const std::string& key);
  void forget(const std::string& name);  // Error("value") for one that is not known

  // The name of a key, this machine's own too; "": it is not known. Files that are no certificates let nobody in. Any
  // thread; the folder is read again where it has changed.
  std::string name_of(const std::string& key) const;
  // The key of a name or of itself. Error("value") where it is not known.
  std::string key_of(const std::string& name_or_key) const;

 private:
  std::map<std::string, std::string> read(std::string* problem) const;
  const std::string folder_;
  PeerCertificate own_;
  bool made_ = false;
  mutable std::mutex lock_;
  mutable std::map<std::string, std::string> names_;  // by key
  mutable timespec read_at_{};                        // the folder's time then; zero: read it again
};

}  // namespace qeng
