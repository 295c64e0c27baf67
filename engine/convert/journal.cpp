#include "engine/convert/journal.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "engine/formats/json_depth.h"
#include "kernels/error.h"

namespace qeng {
namespace {
using nlohmann::json;

json to_json(const InputPosition& position) {
  return {{"file", position.file},
          {"offset", position.offset},
          {"line", position.line},
          {"number", position.number},
          {"closed", position.closed}};
}
InputPosition position_from(const json& value) {
  return {value.at("file"), value.at("offset"), value.at("line"), value.at("number"), value.at("closed")};
}
ConvertCounts counts_from(const json& value) {
  ConvertCounts counts;
  counts.seen = value.at("seen"), counts.records = value.at("records"), counts.tokens = value.at("tokens");
  counts.targets = value.at("targets"), counts.bad = value.at("bad"), counts.longer = value.at("longer");
  counts.duplicates = value.at("duplicates"), counts.repaired = value.at("repaired");
  counts.bad_by_reason = value.at("bad_by_reason").get<std::map<std::string, uint64_t>>();
  return counts;
}

void require_same(const std::string& output, const json& was, const json& now) {
  if (was == now) return;
  for (const auto& [key, value] : now.items()) {
    if (was.contains(key) && was[key] == value) continue;
    fail("value", output, ".partial was begun with another ", key, ": ", was.value(key, json()).dump(), ", now ",
         value.dump(), "; resume with what it was begun with, or convert anew");
  }
  fail("value", output, ".partial was begun with other options; convert anew");
}
}  // namespace

json to_json(const ConvertCounts& counts) {
  return {{"seen", counts.seen},
          {"records", counts.records},
          {"tokens", counts.tokens},
          {"targets", counts.targets},
          {"bad", counts.bad},
          {"longer", counts.longer},
          {"duplicates", counts.duplicates},
          {"repaired", counts.repaired},
          {"bad_by_reason", counts.bad_by_reason}};
}

// Under one name, so that a kill while it is written leaves nothing that the next try does not write over.
static std::string new_journal_path(const std::string& output) { return journal_path(output) + ".new"; }

std::string journal_path(const std::string& output) { return output + ".partial.journal"; }
void remove_journal(const std::string& output) {
  ::unlink(journal_path(output).c_str());
  ::unlink(new_journal_path(output).c_str());
}

void write_journal(const std::string& output, const Journal& journal) {
  json bad = json::array();
  for (const BadRecord& record : journal.bad) bad.push_back({record.place, record.reason});
  const json value = {{"settings", journal.settings},      {"position", to_json(journal.position)},
                      {"counts", to_json(journal.counts)}, {"bad", bad},
                      {"bytes_text", journal.bytes_text},  {"spool", journal.spool}};
  const std::string text = value.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
  const std::string path = new_journal_path(output);
  std::FILE* file = std::fopen(path.c_str(), "wb");
  bool whole = file && std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0 &&
               ::fsync(::fileno(file)) == 0;
  if (file) whole = std::fclose(file) == 0 && whole;
  if (!whole || ::rename(path.c_str(), journal_path(output).c_str()) != 0)
    fail("io", path, ": cannot write: ", std::strerror(errno));
}

std::optional<Journal> read_journal(const std::string& output, const json& settings) {
  const std::string path = journal_path(output);
  std::ifstream file(path, std::ios::binary);
  if (!file || !DatasetSpool::exists(output)) return std::nullopt;
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  check_json_depth(path, text);
  Journal journal;
  try {
    const json value = json::parse(text);
    journal.settings = value.at("settings");
    journal.position = position_from(value.at("position"));
    journal.counts = counts_from(value.at("counts"));
    for (const json& record : value.at("bad")) journal.bad.push_back({record.at(0), record.at(1)});
    journal.bytes_text = value.at("bytes_text");
    journal.spool = value.at("spool");
  } catch (const json::exception& error) {
    fail("format", path, ": is damaged (", error.what(), "); convert anew");
  }
  require_same(output, journal.settings, settings);
  return journal;
}

}  // namespace qeng
