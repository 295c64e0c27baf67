// What a file holds, block by block, so that whoever receives it knows of each block alone whether it is right. As text,
// of which each file has one:
//   qeng blocks 1
//   size 2500000
//   block 1048576
//   a line of 64 hex digits for each block: its SHA-256
// The SHA-256 of this text is the file's hash, by which peers name it. A manifest that others sent is believed when it
// has the hash that was asked for.
#pragma once
#include "engine/blocks/sha256.h"

namespace qeng {

constexpr uint64_t kMaxBlocks = uint64_t{1} << 21;  // 2 TiB: its manifest, 136 MB, still fits a frame between peers

struct Manifest {
  uint64_t size = 0;
  std::vector<Sha256> blocks;
  std::string hash;

  uint64_t bytes(uint64_t index) const;  // of a block: the last one may have fewer
  std::string text() const;
};

// The manifest of a regular file, by all cores. cache: a folder where that of a large file is kept, by its path, device,
// inode, size and times, so that the next process need not read it; "": none. Error("io"): it cannot be read, or changes
// meanwhile.
Manifest manifest_of(const std::string& path, const std::string& cache = "", const BlockWatch& watch = {});

// Error("format") unless the text has the expected hash and is a manifest.
Manifest parse_manifest(std::string_view text, const std::string& expected);

// The bytes of one block of the file at path, as it is now, into what place(size) gives. Error("value") for an index past
// its end.
void read_block(const std::string& path, uint64_t index, const std::function<char*(size_t)>& place);

// A folder as a list of its files. Its hash is the SHA-256 of this text, which is sorted by path:
//   qeng folder 1
//   a line for each file: its hash, its size, its path in the folder
struct ListedFile {
  std::string path, hash;
  uint64_t size = 0;
};
std::string folder_text(std::vector<ListedFile> files);
// Error("format") unless the text has the expected hash, is sorted, and each path stays inside the folder and is no
// folder of another.
std::vector<ListedFile> parse_folder(std::string_view text, const std::string& expected);

// A path in a folder, checked to be relative, printable and without "." and "..".
void check_listed_path(const std::string& path);

}  // namespace qeng
