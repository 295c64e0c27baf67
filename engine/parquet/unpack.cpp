#include "engine/parquet/unpack.h"

#include <brotli/decode.h>
#include <lz4.h>
#include <snappy-c.h>
#include <zlib.h>
#include <zstd.h>

#include <limits>

#include "kernels/error.h"

namespace qeng {
namespace {

// Each fills `made` to its last byte, or says false.

bool unpack_snappy(std::string_view page, std::string& made) {
  size_t length = 0;
  return snappy_uncompressed_length(page.data(), page.size(), &length) == SNAPPY_OK && length == made.size() &&
         snappy_uncompress(page.data(), page.size(), made.data(), &length) == SNAPPY_OK;
}

bool unpack_gzip(std::string_view page, std::string& made) {
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 32) != Z_OK) fail("memory", "zlib could not start");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(page.data()));
  stream.avail_in = static_cast<uInt>(page.size());
  stream.next_out = reinterpret_cast<Bytef*>(made.data());
  stream.avail_out = static_cast<uInt>(made.size());
  const bool good = inflate(&stream, Z_FINISH) == Z_STREAM_END && stream.avail_out == 0;
  inflateEnd(&stream);
  return good;
}

bool unpack_brotli(std::string_view page, std::string& made) {
  size_t length = made.size();
  return BrotliDecoderDecompress(page.size(), reinterpret_cast<const uint8_t*>(page.data()), &length,
                                 reinterpret_cast<uint8_t*>(made.data())) == BROTLI_DECODER_RESULT_SUCCESS &&
         length == made.size();
}

bool unpack_lz4_block(std::string_view page, char* to, size_t size) {
  constexpr size_t kMost = std::numeric_limits<int>::max();
  return page.size() <= kMost && size <= kMost &&
         LZ4_decompress_safe(page.data(), to, static_cast<int>(page.size()), static_cast<int>(size)) ==
             static_cast<int>(size);
}

uint32_t big_endian(std::string_view page, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(page[at + i]);
  return value;
}

// Hadoop's frames: blocks, each after two numbers of four bytes, its size unpacked and packed.
bool unpack_lz4_frames(std::string_view page, std::string& made) {
  size_t at = 0, done = 0;
  while (page.size() - at >= 8) {
    const size_t size = big_endian(page, at), packed = big_endian(page, at + 4);
    at += 8;
    if (packed > page.size() - at || size > made.size() - done) return false;
    if (!unpack_lz4_block(page.substr(at, packed), made.data() + done, size)) return false;
    at += packed;
    done += size;
  }
  return at == page.size() && done == made.size();
}

}  // namespace

std::string unpack_page(int codec, std::string_view page, size_t size) {
  if (codec == 0) return std::string(page);
  std::string made(size, '\0');
  bool good = false;
  switch (codec) {
    case 1: good = unpack_snappy(page, made); break;
    case 2: good = unpack_gzip(page, made); break;
    case 4: good = unpack_brotli(page, made); break;
    case 5:  // LZ4, which some wrote as Hadoop does and some as one block
      good = unpack_lz4_frames(page, made) || unpack_lz4_block(page, made.data(), made.size());
      break;
    case 6: good = ZSTD_decompress(made.data(), made.size(), page.data(), page.size()) == made.size(); break;
    case 7: good = unpack_lz4_block(page, made.data(), made.size()); break;
    default:
      fail("unsupported", "a column packed by ", codec == 3 ? "LZO" : "an unknown codec",
           "; Snappy, zstd, gzip, Brotli and LZ4 are read");
  }
  if (!good) fail("format", "a page does not unpack to its ", size, " bytes");
  return made;
}

}  // namespace qeng
