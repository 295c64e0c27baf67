// Files of weights brought into memory for reading, within the device's budget.
#pragma once
#include <memory>
#include <string>

#include "bindings/runtime.h"
#include "engine/formats/mapped_file.h"

namespace qeng {

// load_files (mapped_file.h) for the files of *file, where the device reads the host's memory. Where it has a budget,
// the files count against it as long as someone keeps *file or a tensor of it: Error("memory") over it, or false with
// if_room.
template <class File>
bool load_within_budget(std::shared_ptr<const File>& file, bool if_room) {
  Device& target = device();
  if (!target.backend().host_memory()) return false;
  if (target.budget() == 0) return load_files(file->files(), if_room);
  size_t bytes = 0;
  for (const auto& each : file->files()) bytes += each->size();
  if (if_room && bytes + target.held() > target.budget()) return false;

  struct Held {
    std::shared_ptr<const File> file;
    size_t bytes;
    ~Held() {
      if (device_in_use()) device().let_go(bytes, "weights in memory");
    }
  };
  target.hold(bytes, "weights in memory", file->path());
  const std::shared_ptr<Held> held(new Held{file, bytes});
  if (!load_files(file->files(), if_room)) return false;
  file = std::shared_ptr<const File>(held, held->file.get());
  return true;
}

}  // namespace qeng
