// What Python's str says of text, which chat templates rest on: cases, classes, repr. Properties are utf8proc's
// (Unicode 14 on Debian 12, 15 on Ubuntu 24.04). Text that is no valid UTF-8 keeps its bytes.
#pragma once
#include <string>
#include <string_view>

namespace qeng {

// str.lower, str.upper, str.capitalize, str.title. Letters whose other case is several (as ß) become those. Left out:
// the final sigma; in title, letters that are small or capital by a property of their own (ª), and eleven Greek
// ligatures.
enum class TextCase { lower, upper, capitalize, title };
std::string to_case(std::string_view text, TextCase to);

// str.isalpha, isdigit (of decimal digits only), isalnum, isspace, isupper, islower.
enum class TextClass { alpha, digit, alnum, space, upper, lower };
bool is_class(std::string_view text, TextClass wanted);

// repr(text): in single quotes unless only they occur in it; what cannot be printed as \n, \x7f or \u200b.
std::string quoted(std::string_view text);

}  // namespace qeng
