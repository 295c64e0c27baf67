#include "engine/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/error.h"

namespace qeng {
namespace {

constexpr uint32_t kCodes = 0x110000;
constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// White_Space of the Unicode character database, which is what \s means in the pattern languages concerned.
bool is_white_space(uint32_t code) {
  return (code >= 9 && code <= 13) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
         code == 0x3000;
}

uint8_t class_of(uint32_t code, int category) {
  if (code == '\r' || code == '\n') return kNewline;
  if (is_white_space(code)) return kSpace;
  if (category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LT) return kUpper;
  if (category == UTF8PROC_CATEGORY_LL) return kLower;
  if (category == UTF8PROC_CATEGORY_LM || category == UTF8PROC_CATEGORY_LO) return kOtherLetter;
  if (category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME) return kMark;
  if (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO) return kNumber;
  return kOther;
}

// A superset of the code points whose NFC_Quick_Check is not Yes or whose combining class is not 0: a canonical
// decomposition that does not come back whole, any mark that may compose or be reordered, Hangul vowels and finals.
bool may_change(uint32_t code, const utf8proc_property_t& property, uint8_t char_class) {
  if (code < 0x300) return false;
  if (property.combining_class != 0 || char_class == kMark) return true;
  if (code >= 0x1160 && code <= 0x11FF) return true;
  if (property.decomp_seqindex == UINT16_MAX || property.decomp_type != 0) return false;
  utf8proc_int32_t parts[32];
  int ignored = 0;
  auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), parts, 32, options, &ignored);
  if (count < 0 || count > 32) return true;
  return utf8proc_normalize_utf32(parts, count, options) != 1 || parts[0] != static_cast<utf8proc_int32_t>(code);
}

std::unique_ptr<uint8_t[]> build_table() {
  std::unique_ptr<uint8_t[]> table(new uint8_t[kCodes]);
  for (uint32_t code = 0; code < kCodes; ++code) {
    const utf8proc_property_t& property = *utf8proc_get_property(static_cast<utf8proc_int32_t>(code));
    uint8_t char_class = class_of(code, property.category);
    table[code] = char_class | (may_change(code, property, char_class) ? kMayChangeInNfc : 0);
  }
  return table;
}

}  // namespace

const uint8_t* unicode_table() {
  static const std::unique_ptr<uint8_t[]> table = build_table();
  return table.get();
}

void append_utf8(uint32_t code, std::string& text) {
  auto put = [&](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) return put(0xC0 | code >> 6), put(0x80 | (code & 63));
  if (code < 0x10000) return put(0xE0 | code >> 12), put(0x80 | (code >> 6 & 63)), put(0x80 | (code & 63));
  put(0xF0 | code >> 18), put(0x80 | (code >> 12 & 63)), put(0x80 | (code >> 6 & 63)), put(0x80 | (code & 63));
}

bool is_word(uint32_t code) {
  const auto in = [code](uint32_t first, uint32_t last) { return code >= first && code <= last; };
  const utf8proc_category_t kind = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return (kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_NL) || kind == UTF8PROC_CATEGORY_PC ||
         in(0x200C, 0x200D) || in(0x24B6, 0x24E9) || in(0x1F130, 0x1F149) || in(0x1F150, 0x1F169) ||
         in(0x1F170, 0x1F189);
}

bool is_ascii(std::string_view text) {
  const char* end = text.data() + text.size();
  return skip_ascii(text.data(), end) == end;
}

int utf8_length(std::string_view text) {
  if (text.empty()) return 0;
  auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return -1;
  int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range shuts out overlong forms, surrogates and what lies past U+10FFFF.
  uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (int i = 1; i < length; ++i, low = 0x80, high = 0xBF)
    if (static_cast<size_t>(i) >= text.size() || byte(static_cast<size_t>(i)) < low ||
        byte(static_cast<size_t>(i)) > high)
      return -i;
  return length;
}

std::string_view valid_utf8(std::string_view text, std::string& storage) {
  const char* end = text.data() + text.size();
  size_t at = 0, copied = 0;
  bool changed = false;
  while (true) {
    at = static_cast<size_t>(skip_ascii(text.data() + at, end) - text.data());
    if (at == text.size()) break;
    int length = utf8_length(text.substr(at, 4));
    if (length > 0) {
      at += static_cast<size_t>(length);
      continue;
    }
    if (!changed) storage.clear(), changed = true;
    storage.append(text, copied, at - copied).append(kReplacement);
    copied = at += static_cast<size_t>(-length);
  }
  if (!changed) return text;
  return storage.append(text, copied);
}

namespace {

// Decomposes, orders marks by combining class and composes, if the form does. The ordering is our own: utf8proc's takes
// quadratic time on a long run of marks.
void append_normalized(const char* p, const char* end, NormalForm form, std::vector<utf8proc_int32_t>& codes,
                       std::string& result) {
  const bool composed = form == NormalForm::c || form == NormalForm::kc;
  const bool compatible = form == NormalForm::kc || form == NormalForm::kd;
  const auto options = static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (compatible ? UTF8PROC_COMPAT : 0));
  codes.clear();
  while (p < end) {
    uint32_t code;
    p += decode_utf8(p, code);
    utf8proc_int32_t parts[32];
    int ignored = 0;
    auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), parts, 32, options, &ignored);
    if (count < 0 || count > 32)
      fail("internal", "utf8proc decomposes U+", std::hex, code, " into ", std::dec, count, " parts");
    codes.insert(codes.end(), parts, parts + count);
  }
  auto combining = [](utf8proc_int32_t code) {
    return code < 0x300 ? 0 : utf8proc_get_property(code)->combining_class;
  };
  for (auto run = codes.begin(); run != codes.end();) {
    if (combining(*run) == 0) {
      ++run;
      continue;
    }
    auto stop = std::find_if(run, codes.end(), [&](utf8proc_int32_t code) { return combining(code) == 0; });
    std::stable_sort(run, stop, [&](utf8proc_int32_t a, utf8proc_int32_t b) { return combining(a) < combining(b); });
    run = stop;
  }
  auto count = utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()), options);
  if (count < 0) fail("internal", "utf8proc: ", utf8proc_errmsg(count));
  for (utf8proc_ssize_t i = 0; i < count; ++i)
    append_utf8(static_cast<uint32_t>(codes[static_cast<size_t>(i)]), result);
}

}  // namespace

std::string_view nfc(std::string_view text, std::string& storage) {
  const uint8_t* table = unicode_table();
  const char* end = text.data() + text.size();
  const char* copied = text.data();   // what lies before is in storage
  const char* starter = text.data();  // the last character that may not change by itself: it may still take a mark
  std::vector<utf8proc_int32_t> codes;
  storage.clear();
  for (const char* p = text.data();;) {
    const char* ascii = skip_ascii(p, end);
    if (ascii > p) starter = ascii - 1;
    p = ascii;
    if (p == end) break;
    if (static_cast<uint8_t>(*p) < 0xCC) {  // below U+0300
      starter = p;
      p += 2;
      continue;
    }
    uint32_t code;
    int bytes = decode_utf8(p, code);
    if (!(table[code] & kMayChangeInNfc)) {
      starter = p;
      p += bytes;
      continue;
    }
    // Normalise from the starter up to the next character that neither changes nor joins what precedes it.
    const char* stop = p + bytes;
    while (stop < end) {
      int next = decode_utf8(stop, code);
      if (!(table[code] & kMayChangeInNfc)) break;
      stop += next;
    }
    storage.append(copied, starter);
    append_normalized(starter, stop, NormalForm::c, codes, storage);
    copied = starter = p = stop;
  }
  if (copied == text.data()) return text;
  return storage.append(copied, end);
}

std::string normal_form(std::string_view text, NormalForm form) {
  std::string made;
  if (valid_utf8(text, made).data() != text.data()) fail("format", "a text to be normalized is not UTF-8");
  std::vector<utf8proc_int32_t> codes;
  append_normalized(text.data(), text.data() + text.size(), form, codes, made);
  return made;
}

std::string Utf8Cutter::push(std::string_view bytes) {
  pending_ += bytes;
  // A character may be incomplete only where the text ends.
  size_t keep = 0;
  for (size_t back = 1; back <= std::min<size_t>(3, pending_.size()); ++back) {
    std::string_view tail = std::string_view(pending_).substr(pending_.size() - back);
    if ((tail[0] & 0xC0) == 0x80) continue;
    uint8_t lead = static_cast<uint8_t>(tail[0]);
    size_t needed = lead < 0xC2 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 1;
    if (back < needed && utf8_length(tail) == -static_cast<int>(back)) keep = back;
    break;
  }
  std::string storage;
  std::string whole(valid_utf8(std::string_view(pending_).substr(0, pending_.size() - keep), storage));
  pending_.erase(0, pending_.size() - keep);
  return whole;
}

std::string Utf8Cutter::finish() {
  std::string rest = pending_.empty() ? "" : kReplacement;
  pending_.clear();
  return rest;
}

}  // namespace qeng
