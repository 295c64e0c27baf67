// The tokens that a folder's JSON files add to its SentencePiece model, found where transformers finds them.
#include <charconv>
#include <filesystem>
#include <set>

#include "engine/tokenizer/loaders.h"
#include "kernels/error.h"

namespace qeng {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json read_if_there(const fs::path& path) { return fs::exists(path) ? read_json(path.string()) : json::object(); }

// "<s>", {"content": "<s>", ...}, and lists of them.
void collect_names(const json& value, std::set<std::string>& names) {
  if (value.is_string()) names.insert(value.get<std::string>());
  if (value.is_object()) names.insert(value.value("content", ""));
  if (value.is_array())
    for (const json& each : value) collect_names(each, names);
}

// {"32000": {"content": "<|im_start|>", "special": true, ...}, ...} as the list that tokenizer.json has.
json listed(const json& decoder) {
  json list = json::array();
  for (const auto& [key, entry] : decoder.items()) {
    int64_t id = -1;
    const auto [end, wrong] = std::from_chars(key.data(), key.data() + key.size(), id);
    json token = entry;
    token["id"] = wrong == std::errc() && end == key.data() + key.size() ? json(id) : json(key);
    list.push_back(std::move(token));
  }
  return list;
}

// {"<|im_start|>": 32000, ...} likewise; special are those that another file names as bos, eos and so on.
json listed(const json& added, const json& config, const json& map) {
  std::set<std::string> special;
  for (const json* file : {&config, &map})
    for (const json& value : *file) collect_names(value, special);
  json list = json::array();
  for (const auto& [content, id] : added.items())
    list.push_back({{"content", content}, {"id", id}, {"special", special.count(content) > 0}});
  return list;
}

}  // namespace

std::map<int32_t, AddedToken> read_folder_tokens(const json& config, const json& tokenizer, const std::string& folder) {
  const fs::path path = folder;
  std::map<int32_t, AddedToken> tokens;
  const auto take = [&](const char* file, const json& list) {
    for (AddedToken& token : read_added_tokens((path / file).string(), list))
      tokens.emplace(token.id, std::move(token));
  };
  try {
    take("tokenizer_config.json", listed(config.value("added_tokens_decoder", json::object())));
    take("tokenizer.json", tokenizer.value("added_tokens", json::array()));
    take("added_tokens.json",
         listed(read_if_there(path / "added_tokens.json"), config, read_if_there(path / "special_tokens_map.json")));
  } catch (const json::exception& reason) {
    fail("format", folder, ": the tokens that its files add: ", reason.what());
  }
  return tokens;
}

}  // namespace qeng
