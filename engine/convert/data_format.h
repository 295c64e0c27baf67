// The formats that datasets come in as text, each of which registers itself. A format is a file engine/convert/
// NAME_format.cpp that defines a DataFormat at namespace scope: every file of such a name is part of each program, and
// nothing else names it. What is no text is a SourceFormat (engine/formats/input_source.h).
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/convert/record_cutter.h"

namespace qeng {

enum class DocumentUnit { file, paragraph, line };  // what one document of a plain text is

struct DataFormat {
  struct Is {
    const char* name;                  // as users say it: "csv"
    std::vector<std::string> endings;  // of files' names, in lower case
    // Whether a file is of it by its first bytes, which then count more than its name; null: the name tells.
    bool (*begins)(std::string_view head) = nullptr;
    bool is_text = false;  // a record is a document as it is; else it is JSON, or what to_json makes
    // path is for messages. Malformed files (an array that does not end) are Error("format"). Malformed records are
    // not looked for here.
    std::unique_ptr<RecordCutter> (*cutter)(DocumentUnit documents, const std::string& path);
    const char* refusal = nullptr;  // what records are counted as that to_json refuses: "CSV"
    // Where the first record of a file names the fields of the others: those names.
    std::vector<std::string> (*names)(std::string_view record) = nullptr;
    // A record as JSON, into `json`; Error("format").
    void (*to_json)(const std::vector<std::string>& names, std::string_view record, std::string& json) = nullptr;
  };
  explicit DataFormat(Is is);
  const Is is;
};

std::vector<const DataFormat*> data_formats();           // by name
const DataFormat& data_format(const std::string& name);  // Error("value")

// By the first bytes or the name's ending (before .gz, .zst, .bz2 or .xz); Error("format") where neither tells.
const DataFormat& detect_format(const std::string& path, std::string_view head);

}  // namespace qeng
