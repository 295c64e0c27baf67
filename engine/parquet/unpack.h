// The pages of a Parquet file, by the codec that its column names (parquet.thrift, CompressionCodec).
#pragma once
#include <string>
#include <string_view>

namespace qeng {

// The `size` bytes that a page holds. Error("format") where it holds others, Error("unsupported") where the codec is
// not read.
std::string unpack_page(int codec, std::string_view page, size_t size);

}  // namespace qeng
