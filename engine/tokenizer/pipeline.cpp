#include "engine/tokenizer/pipeline.h"

#include <xxhash.h>

#include <algorithm>
#include <functional>

#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/byte_bpe.h"
#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/unicode.h"
#include "engine/tokenizer/word_model.h"
#include "kernels/error.h"

namespace qeng {
namespace {

using nlohmann::json;

const json kNull;
const json& member(const json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found == object.end() ? kNull : *found;
}
bool flag(const json& part, const char* key, bool otherwise) {
  const json& value = member(part, key);
  return value.is_boolean() ? value.get<bool>() : otherwise;
}

std::vector<json> leaves(const std::string& path, const json& part, const char* key, int depth = 0) {
  if (part.is_null()) return {};
  if (part.value("type", "") != "Sequence") return {part};
  if (depth > 8) fail("format", path, ": its ", key, " are nested too deeply");
  std::vector<json> parts;
  for (const json& inner : part.at(key))
    for (json& leaf : leaves(path, inner, key, depth + 1)) parts.push_back(std::move(leaf));
  return parts;
}

// A stretch of text between added tokens, cut into pieces. at_start: it begins the text that was given.
class Pieces {
 public:
  Pieces(const std::string& path, const json& part) {
    for (const json& leaf : leaves(path, part, "pretokenizers")) add(path, leaf);
  }
  void operator()(std::vector<std::string>& pieces, bool at_start, bool goes_on) const {
    for (const Step& step : steps_) step(pieces, at_start, goes_on);
  }
  bool byte_level = false;  // pieces are spelled in GPT-2's characters
  bool adds_space = false;  // in front of a text
  std::string space;        // Metaspace's spelling of one

 private:
  using Step = std::function<void(std::vector<std::string>& pieces, bool at_start, bool goes_on)>;

  void cut(std::vector<Cutter::Step> steps) {
    auto cutter = std::make_shared<const Cutter>(std::move(steps));
    steps_.push_back([cutter](std::vector<std::string>& pieces, bool, bool) {
      std::vector<std::string> made;
      std::vector<std::string_view> cuts;
      for (const std::string& piece : pieces) {
        cuts.clear();
        cutter->cut_any(piece, cuts);
        made.insert(made.end(), cuts.begin(), cuts.end());
      }
      pieces.swap(made);
    });
  }
  void add_metaspace(const std::string& path, const json& part) {
    space = part.value("replacement", "\xE2\x96\x81");
    std::string scheme = part.value("prepend_scheme", "");
    if (scheme.empty()) scheme = flag(part, "add_prefix_space", true) ? "always" : "never";  // files of before 2024
    if (scheme != "always" && scheme != "first" && scheme != "never")
      fail("unsupported", path, ": pre-tokenizer ", part.dump());
    adds_space = scheme != "never";
    steps_.push_back([space = space, scheme](std::vector<std::string>& pieces, bool at_start, bool goes_on) {
      bool first = at_start && !goes_on;
      for (std::string& piece : pieces) {
        std::string made;
        for (const char c : piece) c == ' ' ? made += space : made += c;
        const bool seam = goes_on && &piece == &pieces.front();
        if ((scheme == "always" ? !seam : scheme == "first" && first) && !made.starts_with(space))
          made.insert(0, space);
        piece.swap(made);
        first = false;
      }
    });
    if (flag(part, "split", true)) cut({{space, Matches::merged_with_next}});
  }
  void add_byte_level(const json& part) {
    byte_level = true;
    if (flag(part, "add_prefix_space", true)) {
      adds_space = true;
      steps_.push_back([](std::vector<std::string>& pieces, bool, bool goes_on) {
        for (std::string& piece : pieces)
          if (!piece.starts_with(' ') && !(goes_on && &piece == &pieces.front())) piece.insert(0, " ");
      });
    }
    if (flag(part, "use_regex", true)) cut({{find_grammar("gpt2")->pattern}});
    steps_.push_back([](std::vector<std::string>& pieces, bool, bool) {
      for (std::string& piece : pieces) piece = bytes_to_printable(piece);
    });
  }
  void add(const std::string& path, const json& part) {
    const std::string type = part.value("type", "");
    if (type == "Metaspace") return add_metaspace(path, part);
    if (type == "ByteLevel") return add_byte_level(part);
    if (type == "BertPreTokenizer") {
      cut({{R"(\s)", Matches::removed}});
      return cut({{R"([!-/:-@\[-`{-~\p{P}])"}});
    }
    if (std::optional<Cutter::Step> step = step_of(path, part)) cut({std::move(*step)});
  }
  std::vector<Step> steps_;
};

// What ids decode to, token by token.
TokenBytes bytes_of(const WordModel& model, const Pieces& pre, const std::vector<AddedToken>& added,
                    bool byte_fallback) {
  std::vector<std::string> bytes;
  const auto place = [&](int32_t id, std::string content) {
    if (static_cast<size_t>(id) >= bytes.size()) bytes.resize(static_cast<size_t>(id) + 1);
    bytes[static_cast<size_t>(id)] = std::move(content);
  };
  for (const auto& [spelling, id] : model.ids) {
    std::string content = spelling;
    const int byte = byte_fallback ? byte_of_spelling(spelling) : -1;
    if (byte >= 0) {
      content.assign(1, static_cast<char>(byte));
    } else if (pre.byte_level) {
      if (!printable_to_bytes(spelling, content)) content = spelling;
    } else if (!pre.space.empty()) {
      content.clear();
      for (size_t at = 0; at < spelling.size();) {
        const bool space = spelling.compare(at, pre.space.size(), pre.space) == 0;
        content += space ? ' ' : spelling[at];
        at += space ? pre.space.size() : 1;
      }
    } else if (!model.continuation.empty()) {
      content = spelling.starts_with(model.continuation) ? spelling.substr(model.continuation.size()) : " " + spelling;
    } else if (!model.suffix.empty() && spelling.ends_with(model.suffix)) {
      content = spelling.substr(0, spelling.size() - model.suffix.size()) + " ";
    }
    place(id, std::move(content));
  }
  for (const AddedToken& token : added) place(token.id, (model.continuation.empty() ? "" : " ") + token.content);
  TokenBytes made;
  for (const std::string& token : bytes) made.append(token);
  return made;
}

class PipelineTokenizer final : public Tokenizer {
 public:
  PipelineTokenizer(TokenizerProperties properties, TokenBytes bytes, uint64_t hash, Normalizer normalizer, Pieces pre,
                    std::unique_ptr<WordModel> model)
      : Tokenizer(std::move(properties), std::move(bytes), hash),
        normalizer_(std::move(normalizer)),
        pre_(std::move(pre)),
        model_(std::move(model)),
        strips_space_(normalizer_.prepends() || (pre_.adds_space && !pre_.byte_level) ||
                      !model_->continuation.empty()) {
    std::vector<AddedToken> raw, normalized;
    for (AddedToken token : properties_.added) {
      if (token.normalized) token.content = normalizer_(token.content);
      (token.normalized ? normalized : raw).push_back(token);
    }
    raw_ = AddedTokenFinder(std::move(raw));
    normalized_ = AddedTokenFinder(std::move(normalized));
  }

  std::string decode(std::span<const int32_t> ids, bool skip_special) const override {
    std::string text = Tokenizer::decode(ids, skip_special);
    const bool starts_with_text =
        !ids.empty() && (skip_special || !is_special(ids[0]) || !model_->continuation.empty());
    return strips_space_ && starts_with_text && text.starts_with(' ') ? text.substr(1) : text;
  }

  Vocabulary vocabulary() const override {
    fail("unsupported", name(),
         ": this kind of tokenizer is not written as GGUF's lists; use the model's tokenizer.model where there is one");
  }

 protected:
  void encode_valid(std::string_view text, std::vector<int32_t>& ids, bool parse_special, bool goes_on) const override {
    const auto is_added = [&](int32_t id) {
      return std::any_of(properties_.added.begin(), properties_.added.end(),
                         [id](const AddedToken& token) { return token.id == id; });
    };
    const bool seam = goes_on && !ids.empty() && !is_added(ids.back());
    const auto add_id = [&](int32_t id) { ids.push_back(id); };
    raw_.split(
        text, parse_special,
        [&](std::string_view stretch) {
          const bool at_start = stretch.data() == text.data();
          const std::string normal = normalizer_(stretch, !(at_start && seam));
          if (normal.size() > INT32_MAX) fail("value", name(), ": a text grows beyond 2 GB when it is normalized");
          normalized_.split(
              normal, parse_special,
              [&](std::string_view part) {
                std::vector<std::string> pieces = {std::string(part)};
                const bool first = at_start && part.data() == normal.data();
                pre_(pieces, first, first && seam);
                for (const std::string& piece : pieces)
                  if (!piece.empty()) model_->encode(piece, ids);
              },
              add_id);
        },
        add_id);
  }

 private:
  const Normalizer normalizer_;
  const Pieces pre_;
  const std::unique_ptr<WordModel> model_;
  const bool strips_space_;  // that decode takes away again
  AddedTokenFinder raw_, normalized_;
};

}  // namespace

std::shared_ptr<const Tokenizer> make_pipeline(const std::string& path, const json& file,
                                               TokenizerProperties properties) {
  const json& model_part = member(file, "model");
  std::unique_ptr<WordModel> model = make_word_model(path, model_part);
  Normalizer normalizer(path, member(file, "normalizer"));
  Pieces pre(path, member(file, "pre_tokenizer"));
  bool byte_fallback = flag(model_part, "byte_fallback", false);
  for (const json& part : leaves(path, member(file, "decoder"), "decoders")) {
    const std::string type = part.value("type", "");
    // Llama's normalizer writes U+2581 for a space, and this decoder takes it back.
    if (type == "Replace" && member(part, "content") == " ")
      pre.space = member(member(part, "pattern"), "String").get<std::string>();
    else if (type == "ByteFallback")
      byte_fallback = true;
    else if (type != "Fuse" && type != "Strip" && type != "Metaspace" && type != "WordPiece" && type != "BPEDecoder" &&
             type != "ByteLevel")
      fail("unsupported", path, ": decoder ", part.dump());
  }
  TokenBytes bytes = bytes_of(*model, pre, properties.added, byte_fallback);
  const std::string parts =
      member(file, "normalizer").dump() + member(file, "pre_tokenizer").dump() + model_part.dump();
  return std::make_shared<PipelineTokenizer>(std::move(properties), std::move(bytes),
                                             XXH3_64bits(parts.data(), parts.size()), std::move(normalizer),
                                             std::move(pre), std::move(model));
}

}  // namespace qeng
