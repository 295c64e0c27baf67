#include <utf8proc.h>

#include <chrono>
#include <cstdlib>

#include "engine/tokenizer/unicode.h"
#include "tests/catch.h"

using namespace qeng;

namespace {
std::string normal(const std::string& text) {
  std::string storage;
  return std::string(nfc(text, storage));
}
std::string replaced(const std::string& text) {
  std::string storage;
  return std::string(valid_utf8(text, storage));
}
}  // namespace

TEST_CASE("NFC agrees with utf8proc on every code point, alone and after a letter") {
  for (uint32_t code = 1; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string text;
    append_utf8(code, text);
    for (const char* before : {"", "e\u0323"}) {
      std::string whole = before + text;
      utf8proc_uint8_t* expected = utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(whole.c_str()));
      bool same = normal(whole) == reinterpret_cast<const char*>(expected);
      std::free(expected);
      if (!same) FAIL("U+" << std::hex << code);
    }
  }
}

TEST_CASE("every normal form agrees with utf8proc on the code points of four planes, before and behind marks") {
  for (uint32_t code = 1; code < 0x34000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string text = "e\u0307";
    append_utf8(code, text);
    text += "\u0323";
    for (const NormalForm form : {NormalForm::c, NormalForm::d, NormalForm::kc, NormalForm::kd}) {
      const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.c_str());
      utf8proc_uint8_t* expected = form == NormalForm::c    ? utf8proc_NFC(bytes)
                                   : form == NormalForm::d  ? utf8proc_NFD(bytes)
                                   : form == NormalForm::kc ? utf8proc_NFKC(bytes)
                                                            : utf8proc_NFKD(bytes);
      const bool same = normal_form(text, form) == reinterpret_cast<const char*>(expected);
      std::free(expected);
      if (!same) FAIL("U+" << std::hex << code);
    }
  }
  CHECK_THROWS(normal_form("\xff", NormalForm::d));
}

TEST_CASE("NFC of the examples in Unicode annex 15") {
  CHECK(normal("\u212b") == "\u00c5");
  CHECK(normal("A\u030a") == "\u00c5");
  CHECK(normal("\u0071\u0323\u0307") == "\u0071\u0323\u0307");
  CHECK(normal("\u0071\u0307\u0323") == "\u0071\u0323\u0307");
  CHECK(normal("\u1e0b\u0323") == "\u1e0d\u0307");
  CHECK(normal("\u1100\u1161\u11a8") == "\uac01");
  CHECK(normal("\u0958") == "\u0915\u093c");  // excluded from composition
  CHECK(normal("\ufb01") == "\ufb01");        // a compatibility decomposition only
  CHECK(normal(std::string("a\0e\u0301", 5)) == std::string("a\0\u00e9", 4));
}

TEST_CASE("a long run of marks is ordered in reasonable time") {
  std::string text = "a";
  for (int i = 0; i < 100'000; ++i) text += i % 2 ? "\u0323" : "\u0307";
  auto start = std::chrono::steady_clock::now();
  CHECK(normal(text).starts_with("\u1ea1\u0323\u0323"));
  CHECK(normal_form(text, NormalForm::kd).starts_with("a\u0323\u0323\u0323"));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));  // quadratic: minutes
}

TEST_CASE("ill-formed bytes become U+FFFD piece by piece") {
  const std::string r = "\ufffd";
  CHECK(replaced("plain") == "plain");
  CHECK(replaced("\xc0\xaf") == r + r);
  CHECK(replaced("\xed\xa0\x80") == r + r + r);          // a surrogate
  CHECK(replaced("\xf0\x90\x80z") == r + "z");           // cut short: one piece
  CHECK(replaced("\xf4\x90\x80\x80") == r + r + r + r);  // past U+10FFFF
  CHECK(replaced("\xe2\x82\xac\xe2\x82") == "\u20ac" + r);
}

TEST_CASE("a cutter gives whole characters") {
  Utf8Cutter cutter;
  CHECK(cutter.push("a\xe2") == "a");
  CHECK(cutter.push("\x82") == "");
  CHECK(cutter.push("\xac!") == "\u20ac!");
  CHECK(cutter.push("\xf0\x9f") == "");
  CHECK(cutter.push("x") == "\ufffdx");
  CHECK(cutter.push("\xe2") == "");
  CHECK(cutter.finish() == "\ufffd");
  CHECK(cutter.finish() == "");
}
