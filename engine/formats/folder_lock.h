// A folder that one process at a time writes to: an flock on FOLDER/.lock, which says who holds it. The lock goes with
// the process, however that ends; the file stays.
#pragma once
#include <string>

namespace qeng {

// "process 4711 on HOST" where another process holds the folder, "" otherwise. Writes nothing.
std::string folder_holder(const std::string& folder);

// Holds a folder that exists until this process ends; again is the same. Error("busy") names who holds it; false where
// its file system has no locks.
bool hold_folder(const std::string& folder);

}  // namespace qeng
