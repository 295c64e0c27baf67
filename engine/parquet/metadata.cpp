#include "engine/parquet/metadata.h"

#include <cstring>

#include "engine/parquet/thrift.h"

namespace qeng {
namespace {

constexpr int kMostDepth = 64;
using Type = ThriftReader::Type;

// An element of the schema as it is stored: depth first, each with the number of its children.
struct Element {
  ParquetNode node;
  int64_t children = 0;
  int converted = -1;
};

int units_of(ThriftReader& thrift) {  // of times: a union, whose field says which
  int per_second = 0;
  thrift.fields([&](int id, Type type) {
    per_second = id == 1 ? 1000 : id == 2 ? 1'000'000 : 1'000'000'000;
    thrift.skip(type);
  });
  return per_second;
}

void read_logical_type(ThriftReader& thrift, ParquetNode& node) {
  thrift.fields([&](int kind, Type) {
    switch (kind) {
      case 1:
      case 4:
      case 12: node.meaning = ParquetMeaning::text; break;  // string, enum, JSON
      case 2: node.meaning = ParquetMeaning::map; break;
      case 3: node.meaning = ParquetMeaning::list; break;
      case 5: node.meaning = ParquetMeaning::decimal; break;
      case 6: node.meaning = ParquetMeaning::date; break;
      case 7: node.meaning = ParquetMeaning::time; break;
      case 8: node.meaning = ParquetMeaning::timestamp; break;
      case 10: node.meaning = ParquetMeaning::integer; break;
      case 14: node.meaning = ParquetMeaning::uuid; break;
      case 15: node.meaning = ParquetMeaning::float16; break;
      default: break;
    }
    thrift.fields([&](int id, Type type) {
      if (kind == 5 && id == 1)
        node.scale = static_cast<int>(thrift.integer());
      else if ((kind == 7 || kind == 8) && id == 1)
        node.utc = type == Type::yes;
      else if ((kind == 7 || kind == 8) && id == 2)
        node.per_second = units_of(thrift);
      else if (kind == 10 && id == 2)
        node.is_unsigned = type == Type::no;
      else
        thrift.skip(type);
    });
  });
}

// What files of before 2018 have in place of logical types.
void apply_converted_type(Element& element) {
  ParquetNode& node = element.node;
  if (node.meaning != ParquetMeaning::plain) return;
  const auto timed = [&](ParquetMeaning meaning, int per_second) {
    node.meaning = meaning, node.per_second = per_second, node.utc = true;
  };
  switch (element.converted) {
    case 0:
    case 4:
    case 19: node.meaning = ParquetMeaning::text; break;
    case 1:
    case 2: node.meaning = ParquetMeaning::map; break;
    case 3: node.meaning = ParquetMeaning::list; break;
    case 5: node.meaning = ParquetMeaning::decimal; break;
    case 6: node.meaning = ParquetMeaning::date; break;
    case 7: timed(ParquetMeaning::time, 1000); break;
    case 8: timed(ParquetMeaning::time, 1'000'000); break;
    case 9: timed(ParquetMeaning::timestamp, 1000); break;
    case 10: timed(ParquetMeaning::timestamp, 1'000'000); break;
    case 11:
    case 12:
    case 13:
    case 14: node.meaning = ParquetMeaning::integer, node.is_unsigned = true; break;
    default: break;
  }
}

Element read_element(ThriftReader& thrift) {
  Element element;
  ParquetNode& node = element.node;
  node.group = true;
  thrift.fields([&](int id, Type type) {
    switch (id) {
      case 1: {
        const int64_t kind = thrift.integer();
        if (kind < 0 || kind > 7) fail("format", "a column of type ", kind, "; 0 to 7 are defined");
        node.type = static_cast<ParquetType>(kind), node.group = false;
        break;
      }
      case 2: {
        const int64_t size = thrift.integer();
        if (size < 0 || size > 1 << 20) fail("format", "values of ", size, " bytes");
        node.fixed_bytes = static_cast<int>(size);
        break;
      }
      case 3: {
        const int64_t repetition = thrift.integer();
        node.optional = repetition == 1, node.repeated = repetition == 2;
        break;
      }
      case 4: node.name = thrift.text(); break;
      case 5: element.children = thrift.integer(); break;
      case 6: element.converted = static_cast<int>(thrift.integer()); break;
      case 7: node.scale = static_cast<int>(thrift.integer()); break;
      case 10: read_logical_type(thrift, node); break;
      default: thrift.skip(type);
    }
  });
  apply_converted_type(element);
  if (node.scale < 0 || node.scale > 76) fail("format", "a decimal of scale ", node.scale);
  return element;
}

// The element at `at` and what is under it.
ParquetNode build(std::vector<Element>& elements, size_t& at, int defined, int repetition, int depth, int& leaves) {
  if (at == elements.size() || depth > kMostDepth) fail("format", "its schema is damaged");
  Element& element = elements[at++];
  ParquetNode node = std::move(element.node);
  if (depth == 0) node.optional = node.repeated = false;
  node.defined = defined + (node.optional || node.repeated), node.repetition = repetition + node.repeated;
  node.first_leaf = leaves;
  if (!node.group) ++leaves;
  if (node.group && element.children <= 0 && depth > 0)
    fail("unsupported", "column ", node.name, " is a group without fields");
  for (int64_t i = 0; node.group && i < element.children; ++i)
    node.children.push_back(build(elements, at, node.defined, node.repetition, depth + 1, leaves));
  return node;
}

void collect(const ParquetNode& node, std::vector<const ParquetNode*>& leaves) {
  if (!node.group) leaves.push_back(&node);
  for (const ParquetNode& child : node.children) collect(child, leaves);
}

ParquetChunk read_chunk(ThriftReader& thrift) {
  ParquetChunk chunk;
  uint64_t data = 0, dictionary = 0;
  thrift.fields([&](int id, Type type) {
    if (id == 1) fail("unsupported", "columns that lie in other files");
    if (id != 3) return thrift.skip(type);
    thrift.fields([&](int inner, Type of) {
      switch (inner) {
        case 4: chunk.codec = static_cast<int>(thrift.integer()); break;
        case 5: chunk.values = static_cast<uint64_t>(thrift.integer()); break;
        case 7: chunk.bytes = static_cast<uint64_t>(thrift.integer()); break;
        case 9: data = static_cast<uint64_t>(thrift.integer()); break;
        case 11: dictionary = static_cast<uint64_t>(thrift.integer()); break;
        default: thrift.skip(of);
      }
    });
  });
  chunk.offset = dictionary > 0 && dictionary < data ? dictionary : data;
  return chunk;
}

}  // namespace

void read_parquet_metadata(std::string_view file, ParquetMetadata& metadata) {
  if (file.starts_with("PARE") || file.ends_with("PARE")) fail("unsupported", "an encrypted Parquet file");
  if (file.size() < 12 || !file.starts_with("PAR1") || !file.ends_with("PAR1"))
    fail("format", "no whole Parquet file: it does not end with PAR1");
  uint32_t size = 0;
  std::memcpy(&size, file.data() + file.size() - 8, 4);
  if (size > file.size() - 12) fail("format", "its footer is longer than the file");
  ThriftReader thrift(file.substr(file.size() - 8 - size, size));
  std::vector<Element> elements;
  thrift.fields([&](int id, Type type) {
    if (id == 2) return thrift.elements([&](Type) { elements.push_back(read_element(thrift)); });
    if (id != 4) return thrift.skip(type);
    thrift.elements([&](Type) {
      ParquetRowGroup& group = metadata.groups.emplace_back();
      thrift.fields([&](int inner, Type of) {
        if (inner == 1)
          thrift.elements([&](Type) { group.columns.push_back(read_chunk(thrift)); });
        else if (inner == 3)
          group.rows = static_cast<uint64_t>(thrift.integer());
        else
          thrift.skip(of);
      });
    });
  });
  size_t at = 0;
  int leaves = 0;
  metadata.root = build(elements, at, 0, 0, 0, leaves);
  collect(metadata.root, metadata.leaves);
  for (const ParquetRowGroup& group : metadata.groups) {
    if (group.columns.size() != metadata.leaves.size())
      fail("format", "a row group has ", group.columns.size(), " columns, the schema ", metadata.leaves.size());
    for (const ParquetChunk& chunk : group.columns)
      if (chunk.offset > file.size() || chunk.bytes > file.size() - chunk.offset)
        fail("format", "a column lies beyond the file's end");
  }
}

}  // namespace qeng
