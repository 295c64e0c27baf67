// Text data to a packet dataset: a reader cuts the inputs into records, workers parse, render and tokenize them, one
// writer lays the frames down in the inputs' order. The result does not depend on the number of threads, nor on where a
// conversion was interrupted and resumed. Memory is bounded by the blocks in flight, whatever the inputs' size.
#pragma once
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/convert/data_format.h"
#include "engine/convert/render.h"

namespace qeng {

// Longer than max_tokens; end, truncate: the last, the first max_tokens of it are kept.
enum class LongRecords { keep, drop, split, end, truncate };

struct ConvertOptions {
  std::vector<std::string> inputs;  // "-": standard input
  std::string output;
  const DataFormat* format = nullptr;  // null: each file's own (detect_format)
  DocumentUnit documents = DocumentUnit::paragraph;

  std::shared_ptr<const Tokenizer> tokenizer;
  RenderOptions render;
  std::function<std::unique_ptr<RecordRenderer>()> renderer;  // called once in each worker that needs it

  size_t max_tokens = 0;  // 0: no limit
  LongRecords longer = LongRecords::keep;
  bool dedupe = false;
  double max_bad = 0.01;               // share of bad records above which the conversion fails
  size_t max_record_bytes = 16 << 20;  // a longer one is bad: it has to be held in memory

  std::optional<uint8_t> source;  // SRC of every record; otherwise by the record's shape
  std::string source_field;       // of JSON records and CSV rows: names or numbers
  std::map<std::string, uint8_t> source_names;
  uint8_t destination = 0;

  nlohmann::json meta = nlohmann::json::object();      // goes into the dataset
  nlohmann::json settings = nlohmann::json::object();  // of the renderer: a resumed conversion must have the same
  bool resume = false;
  double checkpoint_seconds = 5;
  int threads = 0;  // workers; 0: the cores this process may use
};

struct BadRecord {
  std::string place;  // "data.jsonl:12"
  std::string reason;
};

struct ConvertCounts {
  uint64_t seen = 0;     // records of the inputs
  uint64_t records = 0;  // of the dataset: split records count for each piece
  uint64_t tokens = 0, targets = 0;
  uint64_t bad = 0;
  uint64_t longer = 0;  // than max_tokens: dropped, split or cut, or kept
  uint64_t duplicates = 0;
  uint64_t repaired = 0;  // held ill-formed UTF-8, now U+FFFD
  std::map<std::string, uint64_t> bad_by_reason;
};

struct ConvertStatus {
  bool done = false;
  ConvertCounts counts;
  uint64_t bytes_read = 0, bytes_total = 0;  // of the input files as they lie; total 0: not known
  uint64_t bytes_text = 0;                   // decompressed
  uint64_t bytes_skipped = 0;                // of bytes_text: done before the resume
  std::vector<BadRecord> bad;                // the first ten, each told once
  std::vector<std::string> notes;            // each told once
};

// A running conversion.
class Conversion {
 public:
  explicit Conversion(ConvertOptions options);  // starts the threads; throws what is wrong with options and inputs
  ~Conversion();                                // stops them; what was written stays for a resume
  Conversion(const Conversion&) = delete;

  // Waits until it is done, or for so long. Rethrows what ended it: Error("io"), Error("format"), Error("interrupted").
  ConvertStatus wait(double seconds);
  // Ends it after the records in flight, with a checkpoint: wait() then throws Error("interrupted").
  void stop();
  void abandon();  // stops and removes what was written

 private:
  struct Work;
  std::unique_ptr<Work> work_;
};

}  // namespace qeng
