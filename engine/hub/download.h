// One file of a hub, from its first request to the link in the snapshot.
#pragma once
#include "engine/hub/hub.h"

namespace qeng {

// What hub.h promises for Hub::fetch. Returns whether a hash was checked.
bool download_file(HubConnection& connection, const HubCache& cache, RepoKind kind, const std::string& repo,
                   const std::string& commit, const HubFile& file, const HubWatch& watch);

}  // namespace qeng
