#include "engine/grammar/schema_number.h"

#include <algorithm>
#include <string>

namespace qeng::grammar {
namespace {
Expr digit(char first, char last) { return chars({{static_cast<uint8_t>(first), static_cast<uint8_t>(last)}}); }
Expr any_digits(size_t count) { return repeat(digit('0', '9'), static_cast<int>(count), static_cast<int>(count)); }

// Strings of digits between two of the same length, at most 15.
Expr same_length(const std::string& low, const std::string& high) {
  if (low.empty()) return empty();
  const std::string zeros(low.size() - 1, '0'), nines(low.size() - 1, '9');
  if (low.substr(1) == zeros && high.substr(1) == nines)
    return sequence({digit(low[0], high[0]), any_digits(low.size() - 1)});
  if (low[0] == high[0]) return sequence({digit(low[0], low[0]), same_length(low.substr(1), high.substr(1))});
  std::vector<Expr> all;
  all.push_back(sequence({digit(low[0], low[0]), same_length(low.substr(1), nines)}));
  if (high[0] - low[0] > 1) {
    all.push_back(
        sequence({digit(static_cast<char>(low[0] + 1), static_cast<char>(high[0] - 1)), any_digits(low.size() - 1)}));
  }
  all.push_back(sequence({digit(high[0], high[0]), same_length(zeros, high.substr(1))}));
  return choice(std::move(all));
}

// 0 <= low <= high
Expr natural(int64_t low, int64_t high) {
  std::vector<Expr> all;
  int64_t first = 1;  // of the numbers of `length` digits
  for (size_t length = 1; length <= 15; ++length, first *= 10) {
    const int64_t from = std::max(low, length == 1 ? 0 : first), to = std::min(high, first * 10 - 1);
    if (from <= to) all.push_back(same_length(std::to_string(from), std::to_string(to)));
  }
  return choice(std::move(all));
}

// low <= x <= high, both not negative, one of them perhaps not counting.
Expr magnitude(int64_t low, bool open_low, int64_t high, bool open_high) {
  const auto zeros = [] { return optional(sequence({literal("."), repeat(digit('0', '0'), 1, 15)})); };
  const auto some = [] {  // a fraction that is not 0
    return sequence({literal("."), repeat(digit('0', '0'), 0, 7), digit('1', '9'), repeat(digit('0', '9'), 0, 7)});
  };
  const auto fraction = [] { return optional(sequence({literal("."), repeat(digit('0', '9'), 1, 15)})); };
  std::vector<Expr> all;
  if (low < high) {
    all.push_back(sequence({natural(low, low), open_low ? some() : fraction()}));
    if (low + 1 < high) all.push_back(sequence({natural(low + 1, high - 1), fraction()}));
  }
  if (!open_high && (low < high || !open_low)) all.push_back(sequence({natural(high, high), zeros()}));
  return choice(std::move(all));
}
}  // namespace

Expr integers(int64_t low, int64_t high) {
  std::vector<Expr> all;
  if (low < 0 && low <= high) all.push_back(sequence({literal("-"), natural(std::max<int64_t>(1, -high), -low)}));
  if (high >= 0 && low <= high) all.push_back(natural(std::max<int64_t>(0, low), high));
  return choice(std::move(all));
}

Expr decimals(int64_t low, bool open_low, int64_t high, bool open_high) {
  std::vector<Expr> all;
  if (low > high) return nothing();
  if (low < 0) {
    const int64_t least = std::max<int64_t>(0, -high);
    all.push_back(
        sequence({literal("-"), magnitude(least, high <= 0 ? (open_high || high == 0) : true, -low, open_low)}));
  }
  if (high > 0 || (high == 0 && !open_high)) {
    all.push_back(magnitude(std::max<int64_t>(0, low), low >= 0 && open_low, high, open_high));
  }
  return choice(std::move(all));
}

}  // namespace qeng::grammar
