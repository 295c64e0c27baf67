// Hugging Face's tokenizer.json: here byte-level BPE, the other kinds in pipeline.h. Every part of it that decides ids
// is either understood or refused. Not applied, as in transformers: truncation and padding. The post-processor says
// whether a bos stands before a text (add_bos), and nothing else does.
#include <cctype>
#include <filesystem>
#include <unordered_map>

#include "engine/tokenizer/byte_bpe.h"
#include "engine/tokenizer/loaders.h"
#include "engine/tokenizer/pipeline.h"
#include "kernels/error.h"

namespace qeng {
namespace {

using nlohmann::json;

const json kNull;

const json& member(const json& object, const char* key) {
  auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

std::string type_of(const json& part) { return part.is_object() ? part.value("type", "") : part.dump(); }

bool flag(const json& part, const char* key, bool otherwise = false) {
  const json& value = member(part, key);
  return value.is_boolean() ? value.get<bool>() : otherwise;
}

constexpr int64_t kMaxId = 1 << 22;  // a damaged id must not ask for gigabytes

int32_t token_id(const std::string& path, const json& value) {
  if (!value.is_number_integer() || value < 0 || value > kMaxId)
    fail("format", path, ": token id ", value.dump(), "; expected an integer of 0 to ", kMaxId);
  return value.get<int32_t>();
}

// The parts of a Sequence, or the part itself. Real files nest one or two deep.
std::vector<json> parts_of(const json& part, const char* key, int depth = 0) {
  if (part.is_null()) return {};
  if (type_of(part) != "Sequence") return {part};
  if (depth > 8) fail("format", "tokenizer.json: its ", key, " are nested too deeply");
  std::vector<json> parts;
  for (const json& inner : member(part, key))
    for (json& leaf : parts_of(inner, key, depth + 1)) parts.push_back(std::move(leaf));
  return parts;
}

bool read_normalizer(const std::string& path, const json& normalizer) {
  bool nfc = false;
  for (const json& part : parts_of(normalizer, "normalizers")) {
    if (type_of(part) != "NFC") fail("unsupported", path, ": normalizer ", part.dump(), "; only NFC is supported");
    nfc = true;
  }
  return nfc;
}

Matches matches_of(const std::string& path, const json& part) {
  const std::string name = part.value("behavior", "");
  if (name == "Isolated") return Matches::isolated;
  if (name == "Removed") return Matches::removed;
  if (name == "MergedWithPrevious") return Matches::merged_with_previous;
  if (name == "MergedWithNext") return Matches::merged_with_next;
  if (name == "Contiguous") return Matches::contiguous;
  fail("unsupported", path, ": pre-tokenizer ", part.dump(), ": its behavior is not one that is known");
}

// A pattern that matches this text and no other.
std::string quoted(const std::string& text) {
  std::string pattern;
  for (const char c : text) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && static_cast<unsigned char>(c) < 0x80) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

ByteBpeTokenizer::Text read_pre_tokenizer(const std::string& path, const json& pre_tokenizer) {
  std::vector<Cutter::Step> steps;
  bool byte_level = false, prefix_space = false;
  for (const json& part : parts_of(pre_tokenizer, "pretokenizers")) {
    if (byte_level) fail("unsupported", path, ": pre-tokenizer ", part.dump(), " behind ByteLevel");
    byte_level = type_of(part) == "ByteLevel";
    if (byte_level && flag(part, "add_prefix_space", true)) {
      if (!steps.empty())
        fail("unsupported", path,
             ": pre-tokenizer ByteLevel with add_prefix_space behind others, each piece of which it would change");
      prefix_space = true;
    }
    if (std::optional<Cutter::Step> step = step_of(path, part)) steps.push_back(std::move(*step));
  }
  if (!byte_level) fail("unsupported", path, ": no ByteLevel pre-tokenizer: only byte-level BPE is supported");
  return {.cutter = Cutter(std::move(steps)), .prefix_space = prefix_space};
}

void check_model(const std::string& path, const json& model) {
  if (!model.is_object()) fail("format", path, ": has no \"model\"");
  // Files of before 2021 have no type; they all hold BPE with merges.
  std::string type = model.value("type", "BPE");
  if (type != "BPE") fail("unsupported", path, ": model type ", type, "; only BPE is supported");
  const json& dropout = member(model, "dropout");
  if (!dropout.is_null() && dropout != 0.0) fail("unsupported", path, ": model.dropout ", dropout.dump());
  if (flag(model, "byte_fallback"))
    fail("unsupported", path, ": model.byte_fallback; load the tokenizer.model file instead");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json& value = member(model, key);
    if (!value.is_null() && value != "") fail("unsupported", path, ": model.", key, " ", value.dump());
  }
}

// Takes the tokens that a post-processor puts around a text: one in front is the bos, one behind it the eos where the
// file names none (a text to be continued gets none; what ends a document is its own matter).
void read_around(const std::string& path, const json& shown, const std::vector<std::string>& before,
                 const std::vector<std::string>& behind, TokenizerProperties& properties) {
  if (before.size() > 1 || behind.size() > 1 || (!before.empty() && properties.add_bos))
    fail("unsupported", path, ": post-processor ", shown.dump(),
         "; one token before a text and one behind it are supported");
  const auto id_of = [&](const std::string& content) {
    for (const AddedToken& token : properties.added)
      if (token.content == content) return token.id;
    fail("format", path, ": post-processor ", shown.dump(), " has ", content, ", which is no added token");
  };
  if (!before.empty()) properties.bos = id_of(before[0]), properties.add_bos = true;
  if (!behind.empty() && !properties.eos) properties.eos = id_of(behind[0]);
}

// [CLS] text [SEP], and <s> text </s>, have processors of their own; TemplateProcessing lists what stands around a
// text.
void read_post_processor(const std::string& path, const json& post_processor, TokenizerProperties& properties) {
  for (const json& part : parts_of(post_processor, "processors")) {
    const std::string type = type_of(part);
    if (type == "ByteLevel") continue;  // moves offsets, not ids
    if (type == "BertProcessing" || type == "RobertaProcessing") {
      const json &cls = member(part, "cls"), &sep = member(part, "sep");  // [token, id]
      if (!cls.is_array() || !sep.is_array() || cls.size() != 2 || sep.size() != 2)
        fail("format", path, ": post-processor ", part.dump(), " has no cls and sep");
      read_around(path, part, {cls[0].get<std::string>()}, {sep[0].get<std::string>()}, properties);
      continue;
    }
    if (type != "TemplateProcessing") fail("unsupported", path, ": post-processor ", part.dump());
    std::vector<std::string> before, behind;
    bool text_seen = false;
    for (const json& item : member(part, "single")) {
      if (item.contains("Sequence"))
        text_seen = true;
      else
        (text_seen ? behind : before).push_back(item.at("SpecialToken").at("id").get<std::string>());
    }
    read_around(path, member(part, "single"), before, behind, properties);
  }
}

// Whether the file is plain byte-level BPE, which ByteBpeTokenizer runs.
bool is_byte_level(const json& file) {
  const json& model = member(file, "model");
  if (model.value("type", "BPE") != "BPE" || !model.contains("merges") || flag(model, "byte_fallback")) return false;
  for (const json& part : parts_of(member(file, "normalizer"), "normalizers"))
    if (type_of(part) != "NFC") return false;
  const std::vector<json> parts = parts_of(member(file, "pre_tokenizer"), "pretokenizers");
  for (const json& part : parts) {
    const std::string type = type_of(part);
    if (type == "Metaspace" || type == "BertPreTokenizer") return false;
    if (type == "ByteLevel" && flag(part, "add_prefix_space", true) && &part != &parts.front()) return false;
  }
  return !parts.empty() && type_of(parts.back()) == "ByteLevel";
}

std::shared_ptr<const Tokenizer> build(const std::string& path, const json& file, const json& config,
                                       const std::string& folder) {
  const json& model = member(file, "model");
  TokenizerProperties properties;
  properties.name = std::filesystem::path(folder.empty() ? path : folder).filename().string();
  if (properties.name.empty()) properties.name = path;
  properties.added = read_added_tokens(path, member(file, "added_tokens"));
  read_post_processor(path, member(file, "post_processor"), properties);
  if (!model.is_object()) fail("format", path, ": has no \"model\"");
  if (!is_byte_level(file)) {
    apply_config(properties, config, folder, false);
    return make_pipeline(path, file, std::move(properties));
  }
  check_model(path, model);
  ByteBpeTokenizer::Text text = read_pre_tokenizer(path, member(file, "pre_tokenizer"));
  text.nfc = read_normalizer(path, member(file, "normalizer"));
  for (const json& part : parts_of(member(file, "decoder"), "decoders"))
    if (type_of(part) != "ByteLevel") fail("unsupported", path, ": decoder ", part.dump());

  // Spelling and bytes by id. An added token's bytes are its text, also where the vocabulary lists it too.
  const json& vocab = model.at("vocab");
  std::vector<std::string> bytes;
  auto place = [&](int32_t id, std::string content) {
    if (static_cast<size_t>(id) >= bytes.size()) bytes.resize(static_cast<size_t>(id) + 1);
    bytes[static_cast<size_t>(id)] = std::move(content);
  };
  std::vector<bool> is_added;
  for (const AddedToken& token : properties.added) {
    place(token.id, token.content);
    if (is_added.size() < bytes.size()) is_added.resize(bytes.size());
    is_added[static_cast<size_t>(token.id)] = true;
  }
  std::unordered_map<std::string, int32_t> id_of;
  id_of.reserve(vocab.size());
  std::vector<bool> taken;
  std::string raw;
  for (const auto& [spelling, value] : vocab.items()) {
    int32_t id = token_id(path, value);
    bool added = static_cast<size_t>(id) < is_added.size() && is_added[static_cast<size_t>(id)];
    if (!added && !printable_to_bytes(spelling, raw))
      fail("format", path, ": token ", spelling, " is not spelled in bytes");
    if (!added) place(id, raw);
    if (taken.size() <= static_cast<size_t>(id)) taken.resize(static_cast<size_t>(id) + 1);
    if (taken[static_cast<size_t>(id)]) fail("format", path, ": two tokens have id ", id);
    taken[static_cast<size_t>(id)] = true;
    id_of.emplace(spelling, id);
  }
  TokenBytes tokens;
  for (const std::string& token : bytes) tokens.append(token);

  std::optional<int32_t> unknown;
  if (const json& name = member(model, "unk_token"); name.is_string()) {
    if (const auto found = id_of.find(name.get<std::string>()); found != id_of.end()) unknown = found->second;
    for (const AddedToken& token : properties.added)
      if (name == token.content) unknown = token.id;
    if (!unknown) fail("format", path, ": model.unk_token ", name.dump(), " is not a token");
  }
  bool lacks_bytes = false;
  int32_t byte_ids[256];
  for (int byte = 0; byte < 256; ++byte) {
    char content = static_cast<char>(byte);
    auto found = id_of.find(bytes_to_printable({&content, 1}));
    lacks_bytes = lacks_bytes || found == id_of.end();
    byte_ids[byte] = found != id_of.end() ? found->second : unknown.value_or(-1);
  }
  if (lacks_bytes && unknown && flag(model, "fuse_unk"))
    fail("unsupported", path, ": model.fuse_unk of a vocabulary that lacks bytes");
  const json& merges = model.at("merges");
  Bpe bpe(byte_ids, merges.size());
  int32_t rank = 0;
  for (const json& merge : merges) {
    std::string left, right;  // "a b" or ["a", "b"]
    if (merge.is_array() && merge.size() == 2) {
      left = merge[0].get<std::string>(), right = merge[1].get<std::string>();
    } else {
      std::string both = merge.get<std::string>();
      size_t space = both.find(' ');
      if (space == std::string::npos) fail("format", path, ": merge ", merge.dump(), " is not two tokens");
      left = both.substr(0, space), right = both.substr(space + 1);
    }
    auto a = id_of.find(left), b = id_of.find(right), joined = id_of.find(left + right);
    if (a == id_of.end() || b == id_of.end() || joined == id_of.end())
      fail("format", path, ": merge ", merge.dump(), " names a token that the vocabulary lacks");
    bpe.add_merge(a->second, b->second, {rank++, joined->second});
  }
  if (flag(model, "ignore_merges"))
    for (size_t id = 0; id < tokens.size(); ++id)
      if (!tokens[id].empty() && !(id < is_added.size() && is_added[id]))
        bpe.add_whole(tokens, static_cast<int32_t>(id));
  bpe.finish();
  apply_config(properties, config, folder, false);
  return std::make_shared<ByteBpeTokenizer>(std::move(properties), std::move(tokens), std::move(bpe), std::move(text));
}

}  // namespace

std::optional<Cutter::Step> step_of(const std::string& path, const json& part) {
  const std::string type = type_of(part);
  if (type == "Split") {
    const json& pattern = member(part, "pattern");
    const json &regex = member(pattern, "Regex"), &text = member(pattern, "String");
    if (!regex.is_string() && !text.is_string())
      fail("unsupported", path, ": pre-tokenizer ", part.dump(), ": its pattern is neither Regex nor String");
    return Cutter::Step{regex.is_string() ? regex.get<std::string>() : quoted(text.get<std::string>()),
                        matches_of(path, part), flag(part, "invert")};
  }
  if (type == "Digits") return Cutter::Step{flag(part, "individual_digits") ? R"(\p{N})" : R"(\p{N}+)"};
  if (type == "Punctuation")
    return Cutter::Step{R"([!-/:-@\[-`{-~\p{P}])",
                        part.contains("behavior") ? matches_of(path, part) : Matches::isolated};
  if (type == "Whitespace") {  // by Rust's regex: Alphabetic, marks, digits, connectors and joiners
    const std::string word =
        R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";
    return Cutter::Step{"[" + word + "]+|[^" + word + R"(\s]+)", Matches::removed, true};
  }
  if (type == "WhitespaceSplit") return Cutter::Step{R"(\s)", Matches::removed};
  if (type != "ByteLevel")
    fail("unsupported", path, ": pre-tokenizer ", part.dump(),
         "; byte-level BPE has Split, Digits, Punctuation, Whitespace, WhitespaceSplit and ByteLevel");
  if (!flag(part, "use_regex", true)) return std::nullopt;
  return Cutter::Step{find_grammar("gpt2")->pattern};
}

std::vector<AddedToken> read_added_tokens(const std::string& path, const json& list) {
  std::vector<AddedToken> added;
  for (const json& entry : list) {
    AddedToken token;
    token.content = entry.at("content").get<std::string>();
    token.id = token_id(path, entry.at("id"));
    token.special = flag(entry, "special");
    token.lstrip = flag(entry, "lstrip");
    token.rstrip = flag(entry, "rstrip");
    token.normalized = flag(entry, "normalized", !token.special);
    if (token.content.empty()) fail("format", path, ": added token ", token.id, " is empty");
    token.single_word = flag(entry, "single_word");
    added.push_back(std::move(token));
  }
  return added;
}

std::shared_ptr<const Tokenizer> load_tokenizer_json(const std::string& path, const json& file, const json& config,
                                                     const std::string& folder) {
  try {
    return build(path, file, config, folder);
  } catch (const json::exception& reason) {
    fail("format", path, ": ", reason.what());
  }
}

}  // namespace qeng
