// One block of records to frames: what a worker thread of a conversion does, and what it hands to the writer.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/convert/convert.h"
#include "engine/convert/dataset_spool.h"

namespace qeng {

// Where a reader stands in the inputs: everything before is cut into records.
struct InputPosition {
  size_t file = 0;
  uint64_t offset = 0;  // in the decompressed bytes
  uint64_t line = 1, number = 0;
  bool closed = false;
};

// What became of a record that is not in the dataset because of itself.
struct Rejected {
  uint64_t line = 0, number = 0;
  const char* reason = "";  // the key under which it is counted
  std::string message;
};

struct RecordBlock {
  uint64_t sequence = 0;
  size_t file = 0;
  const DataFormat* format = nullptr;
  std::shared_ptr<const std::vector<std::string>> names;  // of fields, where the file's first record has them
  std::string bytes;                                      // with DocumentReader::kPadding more at its end
  std::vector<RecordSpan> records;
  std::vector<Rejected> rejected;  // by the reader: records that are too long
  InputPosition end;
};

struct ConvertedBlock {
  std::vector<uint8_t> frames;
  std::vector<SpooledRecord> records;
  std::vector<Rejected> rejected;
  uint64_t seen = 0, longer = 0, repaired = 0;
  size_t file = 0;
  uint64_t bytes = 0;  // of the block
  InputPosition end;
};

// For one thread.
class BlockConverter {
 public:
  explicit BlockConverter(const ConvertOptions& options);
  // Throws only what is no record's fault.
  void convert(RecordBlock& block, ConvertedBlock& out);

 private:
  void convert_record(std::string_view text, const RecordBlock& block, ConvertedBlock& out);
  void render_json(std::string_view text);
  void append(size_t begin, size_t end, ConvertedBlock& out);
  uint8_t source_of(const RecordContent& document) const;
  const ConvertOptions& options_;
  DocumentReader reader_;
  PlainRenderer renderer_;
  std::unique_ptr<RecordRenderer> general_;
  RecordContent document_;
  Rendered rendered_;
  std::vector<RenderPiece> pieces_;
  std::string json_;
  uint8_t src_ = 0;
  bool repaired_ = false;
};

// The SRC that a name or number stands for: a name of `names`, one of the protocol's, 0xNN or decimal.
std::optional<uint8_t> source_id(const std::string& text, const std::map<std::string, uint8_t>& names);

}  // namespace qeng
