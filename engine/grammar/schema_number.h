// Numbers of a JSON schema as the texts that mean them: bounds and multiples, exact in decimal.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/grammar/language.h"

namespace qeng::grammar {

// A number as JSON has it: "-12.50e1" is negative, whole "125", fraction "".
struct Decimal {
  bool negative = false;  // 0 is not
  std::string whole;      // without leading zeros, of 0 "0"
  std::string fraction;   // without zeros at its end
  std::string text() const { return (negative ? "-" : "") + whole + (fraction.empty() ? "" : "." + fraction); }
};
Decimal decimal_of(std::string_view json);  // Error("unsupported") for an exponent beyond +-400

constexpr size_t kIntegerDigits = 20;  // as many as unsigned integers of 64 bits have
constexpr size_t kExactDigits = 15;    // of a number that a double tells from its neighbours

// Each narrows a language of decimal texts without exponents and signs before 0; all of them start from one of the
// first three.
void all_numbers(Language& language);
void whole_numbers(Language& language);  // up to kIntegerDigits
// Up to kExactDigits digits, or so many after "0."; large: also whole numbers up to kIntegerDigits.
void decimal_numbers(Language& language, bool large);
void at_least(Language& language, const Decimal& bound, bool open);
void at_most(Language& language, const Decimal& bound, bool open);
void equal_to(Language& language, const Decimal& value, bool wanted);
// step > 0. Error("unsupported") for one of too many digits; what: for the message.
void multiple_of(Language& language, const Decimal& step, bool wanted, const std::string& what);

}  // namespace qeng::grammar
