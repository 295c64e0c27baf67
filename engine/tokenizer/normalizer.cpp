#include "engine/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "engine/tokenizer/base64.h"
#include "engine/tokenizer/pattern.h"
#include "engine/tokenizer/unicode.h"
#include "kernels/error.h"

namespace qeng {
namespace {

using nlohmann::json;

// text with each code point replaced by what fn appends for it.
template <class Fn>
std::string each_code(std::string_view text, Fn fn) {
  std::string made;
  made.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    uint32_t code;
    at += static_cast<size_t>(decode_utf8(text.data() + at, code));
    fn(code, made);
  }
  return made;
}

utf8proc_category_t category(uint32_t code) { return utf8proc_category(static_cast<utf8proc_int32_t>(code)); }

void lower(uint32_t code, std::string& made) {
  if (code == 0x130) return void(made += "i\xCC\x87");  // the one letter whose lower case is two characters
  append_utf8(static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))), made);
}

bool is_white(uint32_t code) {
  const uint8_t kind = unicode_table()[code] & kClassMask;
  return kind == kSpace || kind == kNewline;
}

void replace_all(std::string& text, const Pattern& pattern, const std::string& content) {
  std::string made;
  size_t done = 0, begin = 0, end = 0;
  for (size_t from = 0; from <= text.size() && pattern.find(text, from, begin, end);) {
    made.append(text, done, begin - done).append(content);
    done = from = end;
    if (begin != end) continue;
    uint32_t code;
    from = begin < text.size() ? begin + static_cast<size_t>(decode_utf8(text.data() + begin, code)) : text.size() + 1;
  }
  text = made.append(text, done);
}

void replace_all(std::string& text, const std::string& what, const std::string& content) {
  std::string made;
  size_t done = 0;
  for (size_t at; (at = text.find(what, done)) != std::string::npos; done = at + what.size())
    made.append(text, done, at - done).append(content);
  text = made.append(text, done);
}

bool is_chinese(uint32_t code) {  // as BERT's: ideographs, not Kana or Hangul
  constexpr uint32_t kRanges[][2] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
                                     {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  for (const auto& [first, last] : kRanges)
    if (code >= first && code <= last) return true;
  return false;
}

bool is_control(uint32_t code) {
  if (code == '\t' || code == '\n' || code == '\r') return false;
  const utf8proc_category_t kind = category(code);
  return kind == UTF8PROC_CATEGORY_CC || kind == UTF8PROC_CATEGORY_CF || kind == UTF8PROC_CATEGORY_CO;
}

// SentencePiece's precompiled map: a double-array trie from strings to places in a list of replacements.
class Precompiled {
 public:
  Precompiled(const std::string& path, const std::string& text) {
    std::string bytes;
    uint32_t size = 0;
    if (!decode_base64(text, bytes) || bytes.size() < 4)
      fail("format", path, ": normalizer Precompiled: its map is not base64");
    std::memcpy(&size, bytes.data(), 4);
    if (size % 4 != 0 || size > bytes.size() - 4) fail("format", path, ": normalizer Precompiled: its map is cut off");
    units_.resize(size / 4);
    std::memcpy(units_.data(), bytes.data() + 4, size);
    replacements_ = bytes.substr(4 + size);
  }

  // Grapheme by grapheme as a whole where it is short, else character by character.
  std::string operator()(std::string_view text) const {
    std::string made;
    for (size_t at = 0; at < text.size();) {
      const std::string_view whole = text.substr(at, grapheme(text.substr(at)));
      at += whole.size();
      if (std::string_view found; whole.size() < 6 && find(whole, found)) {
        made += found;
        continue;
      }
      for (size_t i = 0; i < whole.size();) {
        uint32_t code;
        const std::string_view character = whole.substr(i, static_cast<size_t>(decode_utf8(whole.data() + i, code)));
        std::string_view found;
        made += find(character, found) ? found : character;
        i += character.size();
      }
    }
    return made;
  }

 private:
  static size_t grapheme(std::string_view text) {
    uint32_t before, code;
    utf8proc_int32_t state = 0;
    size_t at = static_cast<size_t>(decode_utf8(text.data(), before));
    while (at < text.size()) {
      const int bytes = decode_utf8(text.data() + at, code);
      if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(before), static_cast<utf8proc_int32_t>(code),
                                           &state))
        break;
      at += static_cast<size_t>(bytes), before = code;
    }
    return at;
  }
  // What the shortest of the map's strings that `key` begins with is replaced by.
  bool find(std::string_view key, std::string_view& found) const {
    size_t place = 0;
    if (units_.empty()) return false;
    uint32_t unit = units_[0];
    place ^= offset(unit);
    for (const char c : key) {
      const auto byte = static_cast<uint8_t>(c);
      if (byte == 0) return false;
      place ^= byte;
      if (place >= units_.size()) return false;
      unit = units_[place];
      if ((unit & ((1u << 31) | 0xFF)) != byte) return false;
      place ^= offset(unit);
      if (place >= units_.size()) return false;
      if ((unit >> 8 & 1) == 0) continue;
      const size_t at = units_[place] & ((1u << 31) - 1);
      if (at >= replacements_.size()) return false;
      found = std::string_view(replacements_).substr(at);
      found = found.substr(0, found.find('\0'));
      return true;
    }
    return false;
  }
  static size_t offset(uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

  std::vector<uint32_t> units_;
  std::string replacements_;
};

bool flag(const json& part, const char* key, bool otherwise) {
  const auto found = part.find(key);
  return found != part.end() && found->is_boolean() ? found->get<bool>() : otherwise;
}

}  // namespace

Normalizer::Normalizer(const std::string& path, const json& part) {
  if (!part.is_null()) add(path, part, 0);
}

std::string Normalizer::operator()(std::string_view text, bool prepend) const {
  std::string made(text);
  for (const Step& step : steps_) step(made, prepend);
  return made;
}

void Normalizer::add(const std::string& path, const json& part, int depth) {
  if (depth > 8) fail("format", path, ": its normalizers are nested too deeply");
  const std::string type = part.value("type", "");
  const auto form = [&](NormalForm wanted) {
    steps_.push_back([wanted](std::string& text, bool) {
      if (!is_ascii(text)) text = normal_form(text, wanted);
    });
  };
  const auto codes = [&](auto fn) { steps_.push_back([fn](std::string& text, bool) { text = each_code(text, fn); }); };
  if (type == "Sequence") {
    for (const json& inner : part.at("normalizers")) add(path, inner, depth + 1);
  } else if (type == "NFC") {
    form(NormalForm::c);
  } else if (type == "NFD") {
    form(NormalForm::d);
  } else if (type == "NFKC") {
    form(NormalForm::kc);
  } else if (type == "NFKD") {
    form(NormalForm::kd);
  } else if (type == "Lowercase") {
    codes(lower);
  } else if (type == "StripAccents") {
    codes([](uint32_t code, std::string& made) {
      const utf8proc_category_t kind = category(code);
      if (kind != UTF8PROC_CATEGORY_MN && kind != UTF8PROC_CATEGORY_MC && kind != UTF8PROC_CATEGORY_ME)
        append_utf8(code, made);
    });
  } else if (type == "Strip") {
    steps_.push_back(
        [left = flag(part, "strip_left", true), right = flag(part, "strip_right", true)](std::string& text, bool) {
          size_t begin = 0, end = 0, first = std::string::npos;
          for (size_t at = 0; at < text.size();) {
            uint32_t code;
            const size_t next = at + static_cast<size_t>(decode_utf8(text.data() + at, code));
            if (!is_white(code)) {
              if (first == std::string::npos) first = at;
              end = next;
            }
            at = next;
          }
          begin = left ? std::min(first, text.size()) : 0;
          end = right ? std::max(end, begin) : text.size();
          text = text.substr(begin, end - begin);
        });
  } else if (type == "Prepend") {
    prepends_ = true;
    steps_.push_back([what = part.at("prepend").get<std::string>()](std::string& text, bool prepend) {
      if (prepend && !text.empty()) text.insert(0, what);
    });
  } else if (type == "Replace") {
    const json& pattern = part.at("pattern");
    const std::string content = part.at("content");
    if (pattern.contains("String")) {
      const std::string what = pattern["String"];
      if (what.empty()) fail("format", path, ": normalizer Replace of an empty text");
      steps_.push_back([what, content](std::string& text, bool) { replace_all(text, what, content); });
    } else {
      auto compiled = std::make_shared<const Pattern>(pattern.at("Regex").get<std::string>());
      steps_.push_back([compiled, content](std::string& text, bool) { replace_all(text, *compiled, content); });
    }
  } else if (type == "Precompiled") {
    auto map = std::make_shared<const Precompiled>(path, part.at("precompiled_charsmap").get<std::string>());
    steps_.push_back([map](std::string& text, bool) { text = (*map)(text); });
  } else if (type == "BertNormalizer") {
    const bool lowercase = flag(part, "lowercase", true);
    if (flag(part, "clean_text", true))
      codes([](uint32_t code, std::string& made) {
        if (code == 0 || code == 0xFFFD || is_control(code)) return;
        append_utf8(is_white(code) ? ' ' : code, made);
      });
    if (flag(part, "handle_chinese_chars", true))
      codes([](uint32_t code, std::string& made) {
        if (is_chinese(code)) made += ' ';
        append_utf8(code, made);
        if (is_chinese(code)) made += ' ';
      });
    if (flag(part, "strip_accents", lowercase)) {
      form(NormalForm::d);
      codes([](uint32_t code, std::string& made) {
        if (category(code) != UTF8PROC_CATEGORY_MN) append_utf8(code, made);
      });
    }
    if (lowercase) codes(lower);
  } else {
    fail("unsupported", path, ": normalizer ", part.dump());
  }
}

}  // namespace qeng
