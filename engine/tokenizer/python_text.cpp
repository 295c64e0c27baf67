#include "engine/tokenizer/python_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdio>

#include "engine/tokenizer/unicode.h"

namespace qeng {
namespace {

// Calls each(code, piece) for every character; pieces that are ill-formed have the code -1.
template <class Each>
void for_each_character(std::string_view text, Each each) {
  while (!text.empty()) {
    const int length = utf8_length(text);
    uint32_t code = 0;
    if (length > 0) decode_utf8(text.data(), code);
    const size_t bytes = static_cast<size_t>(length > 0 ? length : -length);
    each(length > 0 ? static_cast<int32_t>(code) : -1, text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
}

utf8proc_category_t category(int32_t code) { return utf8proc_category(code); }
bool is_cased(int32_t code) {
  const utf8proc_category_t kind = category(code);
  return kind == UTF8PROC_CATEGORY_LU || kind == UTF8PROC_CATEGORY_LL || kind == UTF8PROC_CATEGORY_LT;
}

// Appends the code point in upper case (titled: the first letter of it in title case). A small letter whose capital is
// several letters has the capitals of its case folding (Unicode's SpecialCasing says the same of all that have no
// condition).
void append_upper(int32_t code, bool titled, std::string& out) {
  utf8proc_int32_t folded[8];
  const utf8proc_ssize_t count = utf8proc_decompose_char(code, folded, 8, UTF8PROC_CASEFOLD, nullptr);
  if (count > 1 && count <= 8 && category(code) != UTF8PROC_CATEGORY_LU) {
    if (titled && category(utf8proc_totitle(code)) == UTF8PROC_CATEGORY_LT)
      return append_utf8(static_cast<uint32_t>(utf8proc_totitle(code)), out);
    for (utf8proc_ssize_t i = 0; i < count; ++i) {
      const bool small = titled && i > 0;
      append_utf8(static_cast<uint32_t>(small    ? folded[i]
                                        : titled ? utf8proc_totitle(folded[i])
                                                 : utf8proc_toupper(folded[i])),
                  out);
    }
    return;
  }
  append_utf8(static_cast<uint32_t>(titled ? utf8proc_totitle(code) : utf8proc_toupper(code)), out);
}

void append_lower(int32_t code, std::string& out) {
  if (code == 0x130) return void(out += "i\xCC\x87");  // the one letter whose lower case is two characters
  append_utf8(static_cast<uint32_t>(utf8proc_tolower(code)), out);
}

bool is_space(int32_t code) {  // as Python's: bidirectional class WS, B or S, or category Zs
  return (code >= 9 && code <= 13) || (code >= 28 && code <= 32) || code == 0x85 || code == 0x2028 || code == 0x2029 ||
         category(code) == UTF8PROC_CATEGORY_ZS;
}
bool is_letter(int32_t code) {
  const utf8proc_category_t kind = category(code);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}
bool is_printable(int32_t code) {
  switch (category(code)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return code == ' ';
    default: return true;
  }
}
}  // namespace

std::string to_case(std::string_view text, TextCase to) {
  if ((to == TextCase::lower || to == TextCase::upper) && is_ascii(text)) {  // fifty times as fast
    std::string plain(text);
    const char first = to == TextCase::lower ? 'A' : 'a';
    for (char& c : plain)
      if (c >= first && c < first + 26) c = static_cast<char>(c ^ 0x20);
    return plain;
  }
  std::string out;
  out.reserve(text.size());
  bool begins = true;
  for_each_character(text, [&](int32_t code, std::string_view piece) {
    if (code < 0) {
      out += piece;
    } else if (to == TextCase::upper || (begins && to != TextCase::lower)) {
      append_upper(code, to != TextCase::upper, out);
    } else {
      append_lower(code, out);
    }
    begins = to == TextCase::title && (code < 0 || !is_cased(code));
  });
  return out;
}

bool is_class(std::string_view text, TextClass wanted) {
  bool cased = false, fits = true;
  for_each_character(text, [&](int32_t code, std::string_view) {
    if (code < 0) return void(fits = false);
    const utf8proc_category_t kind = category(code);
    const bool upper = kind == UTF8PROC_CATEGORY_LU || kind == UTF8PROC_CATEGORY_LT,
               lower = kind == UTF8PROC_CATEGORY_LL;
    const bool digit = kind == UTF8PROC_CATEGORY_ND;
    cased = cased || upper || lower;
    switch (wanted) {
      case TextClass::alpha: fits = fits && is_letter(code); break;
      case TextClass::digit: fits = fits && digit; break;
      case TextClass::alnum:
        fits = fits && (is_letter(code) || digit || kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_NO);
        break;
      case TextClass::space: fits = fits && is_space(code); break;
      case TextClass::upper: fits = fits && !lower && kind != UTF8PROC_CATEGORY_LT; break;
      case TextClass::lower: fits = fits && !upper; break;
    }
  });
  if (wanted == TextClass::upper || wanted == TextClass::lower) return fits && cased;
  return fits && !text.empty();
}

std::string quoted(std::string_view text) {
  const bool single = text.find('\'') != std::string_view::npos, twice = text.find('"') != std::string_view::npos;
  const char mark = single && !twice ? '"' : '\'';
  std::string out(1, mark);
  for_each_character(text, [&](int32_t code, std::string_view piece) {
    char escape[12];
    if (code == mark || code == '\\') {
      out += '\\', out += static_cast<char>(code);
    } else if (code == '\n' || code == '\r' || code == '\t') {
      out += code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t";
    } else if (code < 0 || is_printable(code)) {
      out += piece;
    } else {
      std::snprintf(escape, sizeof escape,
                    code < 0x100     ? "\\x%02x"
                    : code < 0x10000 ? "\\u%04x"
                                     : "\\U%08x",
                    static_cast<unsigned>(code));
      out += escape;
    }
  });
  return out += mark;
}

}  // namespace qeng
