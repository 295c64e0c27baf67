#include <filesystem>
#include <map>

#include "engine/formats/json_depth.h"
#include "engine/formats/mapped_file.h"
#include "engine/tokenizer/loaders.h"
#include "kernels/error.h"

namespace qeng {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// "<s>", {"content": "<s>", ...} or null.
std::string token_name(const json& config, const char* key) {
  auto found = config.find(key);
  if (found == config.end()) return "";
  if (found->is_object()) return found->value("content", "");
  return found->is_string() ? found->get<std::string>() : "";
}

std::optional<int32_t> token_id(const TokenizerProperties& properties, const json& config, const char* key) {
  std::string name = token_name(config, key);
  if (name.empty()) return std::nullopt;
  for (const AddedToken& token : properties.added)
    if (token.content == name) return token.id;
  fail("format", properties.name, ": tokenizer_config.json names ", name, " as ", key,
       ", which is not a token of this tokenizer");
}

// By name: of config a string ("default") or a list of {"name", "template"}, and what the folder's files add.
std::map<std::string, std::string> templates_of(const json& config, const fs::path& folder) {
  std::map<std::string, std::string> templates;
  auto found = config.find("chat_template");
  if (found != config.end() && found->is_string()) templates["default"] = found->get<std::string>();
  if (found != config.end() && found->is_array())
    for (const json& entry : *found)
      if (entry.is_object()) templates[entry.value("name", "")] = entry.value("template", "");
  if (folder.empty()) return templates;
  const auto read = [](const fs::path& path) { return std::string(MappedFile::open(path.string())->text()); };
  if (fs::exists(folder / "chat_template.jinja")) templates["default"] = read(folder / "chat_template.jinja");
  if (fs::is_directory(folder / "additional_chat_templates"))
    for (const fs::directory_entry& entry : fs::directory_iterator(folder / "additional_chat_templates"))
      if (entry.path().extension() == ".jinja") templates[entry.path().stem().string()] = read(entry.path());
  return templates;
}

}  // namespace

json read_json(const std::string& path) {
  auto file = MappedFile::open(path);
  std::string_view text = file->text();
  check_json_depth(path, text);
  json value;
  try {
    value = json::parse(text.begin(), text.end());
  } catch (const json::exception& reason) {
    fail("format", path, ": not JSON: ", reason.what());
  }
  if (!value.is_object()) fail("format", path, ": expected a JSON object");
  return value;
}

void apply_config(TokenizerProperties& properties, const json& config, const std::string& folder, bool says_bos) {
  try {
    if (auto id = token_id(properties, config, "bos_token")) properties.bos = id;
    if (auto id = token_id(properties, config, "eos_token")) properties.eos = id;
    if (auto id = token_id(properties, config, "pad_token")) properties.pad = id;
    auto add_bos = config.find("add_bos_token");
    if (says_bos && add_bos != config.end() && add_bos->is_boolean()) properties.add_bos = add_bos->get<bool>();
    properties.chat_template = join_templates(templates_of(config, folder));
  } catch (const json::exception& reason) {
    fail("format", properties.name, ": tokenizer_config.json: ", reason.what());
  }
  if (properties.add_bos && !properties.bos)
    fail("format", properties.name, ": add_bos_token is set, but there is no bos_token");
}

std::string join_templates(const std::map<std::string, std::string>& templates) {
  const auto chosen = templates.find("default"), tools = templates.find("tool_use");
  if (chosen != templates.end() && tools == templates.end()) return chosen->second;
  if (templates.empty()) return "";
  std::string names;
  for (const auto& [name, text] : templates) names += (names.empty() ? "" : ", ") + name;
  // A text between {{ '' }} keeps its line ends beside the tags; of the last one Jinja drops one.
  const auto inside = [](std::string text) {
    if (text.ends_with('\n')) text.pop_back();
    return "{{ '' }}" + text + "{{ '' }}";
  };
  const std::string missing = "{{ raise_exception('this model has the chat templates " + names +
                              ", but none for this conversation: take the template chatml, or one of your own') }}";
  return "{% if tools is defined and tools is not none and tools %}" +
         (tools != templates.end() ? inside(tools->second) : missing) + "{% else %}" +
         (chosen != templates.end() ? inside(chosen->second) : missing) + "{% endif %}";
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& path) {
  if (!fs::is_directory(path)) {
    fs::path file = path;
    std::string folder = file.parent_path().empty() ? "." : file.parent_path().string();
    if (file.extension() == ".json") return load_tokenizer_json(path, read_json(path), json::object(), "");
    if (file.extension() == ".gguf") return load_gguf_tokenizer(*Gguf::open(path));
    if (file.extension() == ".tiktoken" ||
        (file.extension() == ".model" && is_tiktoken(MappedFile::open(path)->text())))
      return load_released_tiktoken(path);
    if (file.extension() == ".model") return load_sentencepiece(path, json::object(), "", {});
    MappedFile::open(path);  // says so if it does not exist
    fail("unsupported", path,
         ": expected a folder, tokenizer.json, a .gguf, a .tiktoken or a SentencePiece .model file");
  }

  fs::path folder = path;
  fs::path config_path = folder / "tokenizer_config.json", json_path = folder / "tokenizer.json",
           model_path = folder / "tokenizer.model";
  json config = fs::exists(config_path) ? read_json(config_path.string()) : json::object();
  json tokenizer = json::object();
  if (fs::exists(json_path)) {
    tokenizer = read_json(json_path.string());
    // Llama-2's tokenizer.json is a conversion of the SentencePiece file beside it, which GGUF can be written from.
    auto model = tokenizer.find("model");
    bool converted = model != tokenizer.end() && model->is_object() && model->contains("byte_fallback") &&
                     (*model)["byte_fallback"] == true;
    if (!converted || !fs::exists(model_path)) return load_tokenizer_json(json_path.string(), tokenizer, config, path);
  }
  if (fs::exists(model_path) && is_tiktoken(MappedFile::open(model_path.string())->text()))
    return load_released_tiktoken(model_path.string());
  if (fs::exists(model_path))
    return load_sentencepiece(model_path.string(), config, path, read_folder_tokens(config, tokenizer, path));
  if (fs::exists(folder / "qwen.tiktoken")) return load_tokenizer((folder / "qwen.tiktoken").string());
  fail("io", path, ": holds neither tokenizer.json nor tokenizer.model",
       fs::exists(folder / "vocab.json") ? "; vocab.json and merges.txt alone do not say how text is cut" : "");
}

}  // namespace qeng
