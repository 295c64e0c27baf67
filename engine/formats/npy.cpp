#include "engine/formats/npy.h"

#include <bit>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include "engine/formats/atomic_file.h"
#include "engine/formats/mapped_file.h"
#include "kernels/error.h"

namespace qeng {
namespace {
static_assert(std::endian::native == std::endian::little, "files are little-endian, and are copied as they are");

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kAlignment = 64;                    // of the data, which numpy may map
constexpr uint64_t kMostHeader = 10'000;             // bytes: numpy's own limit
constexpr int64_t kMostElements = int64_t{1} << 46;  // as make_tensor

template <class From, class To>
void convert(const std::byte* from, std::byte* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from + static_cast<size_t>(i) * sizeof value, sizeof value);
    const To converted = static_cast<To>(value);
    std::memcpy(to + static_cast<size_t>(i) * sizeof converted, &converted, sizeof converted);
  }
}

struct NpyType {
  std::string_view descr;
  size_t bytes;
  DType dtype;  // that it becomes
  const char* remark;
  void (*converter)(const std::byte* from, std::byte* to, int64_t count);  // null: kept as it is
};
constexpr NpyType kTypes[] = {
    {"<f4", 4, DType::f32, "", nullptr},
    {"<f2", 2, DType::f16, "", nullptr},
    {"<i4", 4, DType::i32, "", nullptr},
    {"<i8", 8, DType::i64, "", nullptr},
    {"|u1", 1, DType::u8, "", nullptr},
    {"<f8", 8, DType::f32, "float64 was rounded to f32", convert<double, float>},
    {"|b1", 1, DType::u8, "bool became u8, 1 and 0", nullptr},
    {"|i1", 1, DType::i32, "int8 became i32", convert<int8_t, int32_t>},
    {"<i2", 2, DType::i32, "int16 became i32", convert<int16_t, int32_t>},
    {"<u2", 2, DType::i32, "uint16 became i32", convert<uint16_t, int32_t>},
};

// The header, a Python dict of three keys: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class Header {
 public:
  Header(const std::string& path, std::string_view text) : path_(path), rest_(text) {
    expect("{");
    while (!take("}")) {
      const std::string_view key = string();
      expect(":");
      if (key == "descr" && !descr)
        descr = string();
      else if (key == "fortran_order" && !fortran)
        fortran = boolean();
      else if (key == "shape" && !shape)
        shape = tuple();
      else
        refuse("has the key " + std::string(key) + " twice, or it is not known");
      if (!take(",")) {
        expect("}");
        break;
      }
    }
    space();
    if (!rest_.empty()) refuse("goes on after its end");
    if (!descr || !fortran || !shape) refuse("lacks descr, fortran_order or shape");
  }

  std::optional<std::string_view> descr;
  std::optional<bool> fortran;
  std::optional<std::vector<int64_t>> shape;

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    fail("format", path_, ": the header of the .npy file ", what);
  }
  void space() {
    while (!rest_.empty() && (rest_[0] == ' ' || rest_[0] == '\n')) rest_.remove_prefix(1);
  }
  bool take(std::string_view word) {
    space();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  void expect(std::string_view word) {
    if (!take(word)) refuse("is not {'descr': ..., 'fortran_order': ..., 'shape': ...}: no " + std::string(word));
  }
  std::string_view string() {
    space();
    const char quote = rest_.empty() ? 0 : rest_[0];
    const size_t end = quote == '\'' || quote == '"' ? rest_.find(quote, 1) : std::string_view::npos;
    if (end == std::string_view::npos) refuse("has something else where text in quotes has to be: fields, perhaps");
    const std::string_view text = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return text;
  }
  bool boolean() {
    if (take("True")) return true;
    expect("False");
    return false;
  }
  std::vector<int64_t> tuple() {
    std::vector<int64_t> sizes;
    expect("(");
    while (!take(")")) {
      int64_t size = 0;
      space();
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), size);
      if (error != std::errc() || size < 0) refuse("has a dimension that is no size");
      if (sizes.size() == kMaxRank)
        fail("unsupported", path_, ": the array has more than ", kMaxRank, " dimensions: reshape it in NumPy");
      rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
      sizes.push_back(size);
      if (!take(",")) {
        expect(")");
        break;
      }
    }
    return sizes;
  }

  const std::string& path_;
  std::string_view rest_;
};

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

int64_t elements_of(const std::string& path, const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (int64_t size : shape) {
    if (size > 0 && count > kMostElements / size) fail("format", path, ": the array's shape is out of range");
    count *= size;
  }
  return count;
}

// Elements whose first dimension changes quickest, in the order where the last one does.
std::vector<std::byte> in_c_order(const std::byte* data, const std::vector<int64_t>& shape, size_t bytes,
                                  int64_t count) {
  std::vector<std::byte> ordered(static_cast<size_t>(count) * bytes);
  std::vector<int64_t> index(shape.size()), stride(shape.size());
  int64_t step = 1;
  for (size_t d = 0; d < shape.size(); ++d) stride[d] = step, step *= shape[d];
  int64_t from = 0;
  for (int64_t to = 0; to < count; ++to) {
    std::memcpy(ordered.data() + static_cast<size_t>(to) * bytes, data + static_cast<size_t>(from) * bytes, bytes);
    for (size_t d = shape.size(); d-- > 0;) {
      from += stride[d];
      if (++index[d] < shape[d]) break;
      from -= stride[d] * shape[d], index[d] = 0;
    }
  }
  return ordered;
}

const NpyType& type_of(const std::string& path, std::string_view descr) {
  std::string all;
  for (const NpyType& type : kTypes) {
    if (type.descr == descr || (type.bytes == 1 && descr.size() == 3 && descr.substr(1) == type.descr.substr(1)))
      return type;
    all += (all.empty() ? "" : " ") + std::string(type.descr);
  }
  fail("unsupported", path, ": dtype '", descr, "' is not read; convert it in NumPy, as array.astype('<f4'). Read are ",
       all);
}
}  // namespace

NpyArray read_npy(const std::string& path) {
  const auto file = MappedFile::open(path);
  const std::string_view text = file->text();
  if (!text.starts_with(kMagic) || text.size() < 12)
    fail("format", path, ": no .npy file, which begins with \\x93NUMPY");
  const auto version = static_cast<uint8_t>(text[6]);
  if (version < 1 || version > 3)
    fail("unsupported", path, ": version ", int{version}, " of .npy is not known; 1 to 3 are");
  const size_t length_bytes = version == 1 ? 2 : 4, begin = 8 + length_bytes;
  const uint64_t length = little_endian(text.substr(8, length_bytes));
  if (length > kMostHeader || length > text.size() - begin)
    fail("format", path, ": the header of the .npy file has ", length, " bytes, of which the file holds ",
         text.size() - begin);
  const Header header(path, text.substr(begin, length));
  const NpyType& type = type_of(path, *header.descr);
  const int64_t count = elements_of(path, *header.shape);
  const size_t stored = text.size() - begin - length, expected = static_cast<size_t>(count) * type.bytes;
  if (stored != expected)
    fail("format", path, ": the header says ", expected, " bytes of data, and the file has ", stored,
         ": it was cut, or is damaged");

  NpyArray array{*header.shape, type.dtype, {}, type.remark};
  const std::byte* data = file->data() + begin + length;
  if (*header.fortran && array.shape.size() > 1)
    array.data = in_c_order(data, array.shape, type.bytes, count);
  else
    array.data.assign(data, data + expected);
  if (type.converter) {
    std::vector<std::byte> converted(static_cast<size_t>(count) * dtype_size(type.dtype));
    type.converter(array.data.data(), converted.data(), count);
    array.data = std::move(converted);
  }
  return array;
}

void write_npy(const std::string& path, const std::vector<int64_t>& shape, DType dtype, const void* data) {
  const NpyType* found = nullptr;
  for (const NpyType& type : kTypes)
    if (type.dtype == dtype && !*type.remark) found = &type;
  if (!found) fail("dtype", path, ": NumPy has no ", dtype_name(dtype), ": save x:to('f32')");
  std::string header = "{'descr': '" + std::string(found->descr) + "', 'fortran_order': False, 'shape': (";
  size_t bytes = found->bytes;
  for (size_t d = 0; d < shape.size(); ++d) {
    header += std::to_string(shape[d]) + (d + 1 < shape.size() ? ", " : shape.size() == 1 ? "," : "");
    bytes *= static_cast<size_t>(shape[d]);
  }
  header += "), }";
  constexpr size_t kBefore = 10;  // magic, version, length
  header.append(kAlignment - (kBefore + header.size() + 1) % kAlignment, ' ');
  header += '\n';
  AtomicFile file(path);
  file.write(kMagic);
  const uint8_t version_and_length[] = {1, 0, static_cast<uint8_t>(header.size()),
                                        static_cast<uint8_t>(header.size() >> 8)};
  file.write(version_and_length, sizeof version_and_length);
  file.write(header);
  file.write(data, bytes);
  file.commit();
}

}  // namespace qeng
