// The footer of a Parquet file: its schema as a tree, and where the columns of each row group lie.
// Source: parquet-format, README.md, LogicalTypes.md and src/main/thrift/parquet.thrift.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace qeng {

enum class ParquetType : uint8_t { boolean, int32, int64, int96, float32, float64, bytes, fixed };
// What values mean; `plain` as they are stored.
enum class ParquetMeaning : uint8_t { plain, text, decimal, date, time, timestamp, integer, uuid, float16, list, map };

struct ParquetNode {
  std::string name;
  ParquetMeaning meaning = ParquetMeaning::plain;
  ParquetType type = ParquetType::boolean;
  bool group = false, optional = false, repeated = false;
  bool is_unsigned = false, utc = false;
  int fixed_bytes = 0, scale = 0, per_second = 0;  // of fixed; of decimals; of times: 1000, 10^6 or 10^9
  int defined = 0, repetition = 0;                 // the levels at which this node is there, and at which it repeats
  int first_leaf = 0;                              // of the columns under it
  std::vector<ParquetNode> children;
};

struct ParquetChunk {  // a column of a row group
  int codec = 0;
  uint64_t offset = 0, bytes = 0, values = 0;
};
struct ParquetRowGroup {
  uint64_t rows = 0;
  std::vector<ParquetChunk> columns;
};
struct ParquetMetadata {
  ParquetNode root;
  std::vector<const ParquetNode*> leaves;  // into root
  std::vector<ParquetRowGroup> groups;
};

// file: the whole of it. Error("format") | Error("unsupported"), without the file's name.
void read_parquet_metadata(std::string_view file, ParquetMetadata& metadata);

}  // namespace qeng
