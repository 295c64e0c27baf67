// A column of a row group, value by value; of its pages one is held at a time, and its dictionary.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/parquet/decoders.h"
#include "engine/parquet/metadata.h"

namespace qeng {

class ParquetColumn {
 public:
  ParquetColumn(std::string_view file, const ParquetNode& leaf, const ParquetChunk& chunk);

  // What is at hand: levels, and, where defined() is the leaf's, a value. done(): nothing is.
  bool done() const { return done_; }
  int repetition() const { return repetition_; }
  int defined() const { return defined_; }
  uint64_t number() const { return number_; }        // booleans, numbers; floats by their bits
  std::string_view bytes() const { return bytes_; }  // of bytes, fixed and int96; until next()
  void next();

 private:
  enum class Encoding { none, plain, dictionary, runs, delta, delta_lengths, delta_bytes, split };
  bool begin_page();
  void begin_values(int encoding, std::string_view page, uint64_t count);
  void read_dictionary(std::string_view page, uint64_t count);
  void read_value();
  void plain_value(PageBytes& from);
  size_t width() const;  // of a stored value; 0 for bytes
  bool is_text() const;

  std::string_view file_;
  const ParquetNode& leaf_;
  const ParquetChunk& chunk_;
  uint64_t at_, end_, left_in_page_ = 0, left_in_chunk_;
  bool done_ = false;
  int repetition_ = 0, defined_ = 0;
  uint64_t number_ = 0;
  std::string_view bytes_;

  std::string page_, dictionary_page_, last_;
  std::vector<std::string_view> dictionary_bytes_;
  std::vector<uint64_t> dictionary_numbers_;
  RunReader repetitions_, definitions_, indices_;
  Encoding encoding_ = Encoding::none;
  PageBytes plain_;
  DeltaReader deltas_;
  PackedBits packed_booleans_;
  bool plain_booleans_ = false;
  std::vector<uint64_t> lengths_, prefix_lengths_;
  size_t next_length_ = 0;
  std::string_view split_;
  uint64_t split_at_ = 0;
  std::string split_value_;
};

}  // namespace qeng
