#include <dlfcn.h>

#include "engine/peers/peers.h"
#include "kernels/error.h"
#include "kernels/shared_library.h"

namespace qeng {

PeerLibrary& peer_library() {
  static PeerLibrary& library = []() -> PeerLibrary& {
    const std::string path = own_library("libqeng_peers.so");
    if (path.empty())
      fail(
          "unsupported",
          "this qeng cannot talk to peers: libqeng_peers.so is not beside it; build where CZMQ's headers are, Debian's "
          "libczmq-dev");
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: CZMQ ends with the process
    if (!handle) fail("unsupported", "this qeng cannot talk to peers: ", dlerror(), "; install Debian's libczmq4");
    const auto entry = reinterpret_cast<PeerLibraryEntry>(dlsym(handle, kPeerLibraryEntry));
    if (!entry) fail("unsupported", path, " is none of qeng's");
    return *entry();
  }();
  return library;
}

}  // namespace qeng
