#include "engine/formats/input_source.h"

#include <algorithm>

namespace qeng {
namespace {

std::vector<const SourceFormat*>& registered() {
  static std::vector<const SourceFormat*> all;
  return all;
}

}  // namespace

void InputSource::skip(uint64_t bytes) {
  std::vector<char> dropped(size_t{256} << 10);
  while (bytes > 0) {
    const size_t n = read(dropped.data(), static_cast<size_t>(std::min<uint64_t>(bytes, dropped.size())));
    if (n == 0) return;
    bytes -= n;
  }
}

SourceFormat::SourceFormat(const char* name_, std::string magic_, std::vector<std::string> endings_, Open open_)
    : name(name_), magic(std::move(magic_)), endings(std::move(endings_)), open(open_) {
  registered().push_back(this);
}
const std::vector<const SourceFormat*>& source_formats() { return registered(); }

}  // namespace qeng
