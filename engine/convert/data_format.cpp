#include "engine/convert/data_format.h"

#include <algorithm>
#include <cctype>

#include "kernels/error.h"

namespace qeng {
namespace {

std::vector<const DataFormat*>& registered() {
  static std::vector<const DataFormat*> all;
  return all;
}

// "csv, json or text"
std::string names_text() {
  std::string text;
  const std::vector<const DataFormat*> all = data_formats();
  for (size_t i = 0; i < all.size(); ++i)
    text += (i == 0 ? "" : i + 1 == all.size() ? " or " : ", ") + std::string(all[i]->is.name);
  return text;
}

}  // namespace

DataFormat::DataFormat(Is given) : is(std::move(given)) { registered().push_back(this); }

std::vector<const DataFormat*> data_formats() {
  std::vector<const DataFormat*> all = registered();
  std::sort(all.begin(), all.end(),
            [](auto* a, auto* b) { return std::string_view(a->is.name) < std::string_view(b->is.name); });
  return all;
}

const DataFormat& data_format(const std::string& name) {
  for (const DataFormat* format : registered())
    if (format->is.name == name) return *format;
  fail("value", "there is no format ", name, "; expected ", names_text());
}

const DataFormat& detect_format(const std::string& path, std::string_view head) {
  std::string name = path;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const char* packed : {".gz", ".zst", ".zstd", ".bz2", ".xz"})
    if (name.ends_with(packed)) name.resize(name.size() - std::string_view(packed).size());
  const auto named = [&](const DataFormat* format) {
    return std::any_of(format->is.endings.begin(), format->is.endings.end(),
                       [&](const std::string& ending) { return name.ends_with("." + ending); });
  };
  const std::vector<const DataFormat*> all = data_formats();
  for (const DataFormat* format : all)
    if (!format->is.begins && named(format)) return *format;
  for (const DataFormat* format : all)
    if (format->is.begins && format->is.begins(head)) return *format;
  for (const DataFormat* format : all)
    if (named(format)) return *format;
  fail("format", path, ": neither its name nor its first bytes tell its format; say that it is ", names_text());
}

}  // namespace qeng
