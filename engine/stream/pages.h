// The pages of memory that lies in a file, in the process's tables: brought there before they are used, and given up.
#pragma once
#include <cstddef>

namespace qeng {

// Lets the disk begin with all of it.
void ask_for_pages(const void* memory, size_t bytes);

// Whether it begins in a mapping of a file, rather than in memory that no file has.
bool lies_in_file(const void* memory);

// Returns when they are there; false where the file has become shorter or its disk failed, so that an access would end
// the process.
bool bring_pages(const void* memory, size_t bytes);

// Takes the whole pages of memory that lies in a file, and was not changed where that is mapped privately, out of the
// process.
void drop_pages(const void* memory, size_t bytes);

}  // namespace qeng
