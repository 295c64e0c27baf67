// How far a conversion has come, beside its output as OUT.partial.journal: what a resume needs, and what it checks to
// refuse other inputs or options.
#pragma once
#include <optional>
#include <string>

#include "engine/convert/worker.h"

namespace qeng {

struct Journal {
  nlohmann::json settings;  // all that decides the result, inputs included
  InputPosition position;
  ConvertCounts counts;
  std::vector<BadRecord> bad;  // those told so far
  uint64_t bytes_text = 0;
  nlohmann::json spool;
};

std::string journal_path(const std::string& output);
void write_journal(const std::string& output, const Journal& journal);
void remove_journal(const std::string& output);

// The journal of an interrupted conversion to `output`; nothing if there is none to go on with. One made with other
// settings is Error("value"), which names the first that differs; an unreadable one is Error("format").
std::optional<Journal> read_journal(const std::string& output, const nlohmann::json& settings);

nlohmann::json to_json(const ConvertCounts& counts);

}  // namespace qeng
