#include "engine/grammar/schema_number.h"

#include <algorithm>
#include <charconv>
#include <functional>

#include "kernels/error.h"

namespace qeng::grammar {
namespace {
constexpr int64_t kMostExponent = 400;  // what doubles have
constexpr uint64_t kMostStep = 5'000;   // remainders to tell apart

Expr digit(char first, char last) { return chars({{static_cast<uint8_t>(first), static_cast<uint8_t>(last)}}); }
Expr digits(size_t min, int max) { return repeat(digit('0', '9'), static_cast<int>(min), max); }
Expr fraction(size_t most) {  // with its point, or none
  return optional(sequence({literal("."), digits(1, static_cast<int>(most))}));
}
Expr any_fraction() { return optional(sequence({literal("."), digits(1, Expr::kUnlimited)})); }
Expr natural(size_t min, size_t max) {  // of so many digits
  std::vector<Expr> all;
  if (min == 1) all.push_back(literal("0"));
  all.push_back(sequence({digit('1', '9'), digits(min - 1, static_cast<int>(max) - 1)}));
  return choice(std::move(all));
}

// What begins as `low`, digits after `before`, and then has a greater one, followed by as many as `after` says.
void greater_digits(const std::string& low, const std::string& before, const std::function<Expr(size_t)>& after,
                    std::vector<Expr>& all) {
  for (size_t i = 0; i < low.size(); ++i) {
    if (low[i] == '9') continue;
    all.push_back(sequence({literal(before + low.substr(0, i)), digit(static_cast<char>(low[i] + 1), '9'), after(i)}));
  }
}

// Texts without a sign of what is greater than the size of `bound`, or with it.
Expr above(const Decimal& bound, bool or_equal) {
  const std::string& whole = bound.whole;
  std::vector<Expr> all;
  all.push_back(sequence({digit('1', '9'), digits(whole.size(), Expr::kUnlimited), any_fraction()}));
  const Expr more = digits(0, Expr::kUnlimited);
  const auto as_long = [&](size_t i) {
    return sequence({digits(whole.size() - i - 1, static_cast<int>(whole.size() - i - 1)), any_fraction()});
  };
  greater_digits(whole, "", as_long, all);
  greater_digits(
      bound.fraction, whole + ".", [&](size_t) { return more; }, all);
  const std::string equal = whole + "." + bound.fraction;
  all.push_back(sequence({literal(equal), more, digit('1', '9'), more}));  // longer
  if (or_equal) {
    const Expr zeros = repeat(literal("0"), bound.fraction.empty() ? 1 : 0, Expr::kUnlimited);
    all.push_back(sequence({literal(equal), zeros}));
    if (bound.fraction.empty()) all.push_back(literal(whole));
  }
  return choice(std::move(all));
}

Expr negative(Expr size) { return sequence({literal("-"), std::move(size)}); }
Expr positive_sign() {
  return sequence({digit('0', '9'), repeat(chars({{'.', '.'}, {'0', '9'}}), 0, Expr::kUnlimited)});
}
bool is_zero(const Decimal& value) { return value.whole == "0" && value.fraction.empty(); }

void no_negative_zero(Language& language) {
  language.must_not(
      sequence({literal("-0"), optional(sequence({literal("."), repeat(literal("0"), 0, Expr::kUnlimited)}))}));
}
}  // namespace

Decimal decimal_of(std::string_view json) {
  Decimal out;
  size_t at = 0;
  if (json.starts_with('-')) out.negative = true, ++at;
  const size_t mantissa_end = std::min(json.find_first_of("eE", at), json.size());
  int64_t exponent = 0;
  if (mantissa_end < json.size()) {
    const size_t begin = mantissa_end + 1 + (json[mantissa_end + 1] == '+');
    std::from_chars(json.data() + begin, json.data() + json.size(), exponent);
  }
  if (exponent > kMostExponent || exponent < -kMostExponent)
    fail("unsupported", "schema: the number ", std::string(json), " is out of what can be compared");
  const std::string_view mantissa = json.substr(at, mantissa_end - at);
  const size_t point = std::min(mantissa.find('.'), mantissa.size());
  std::string all(mantissa.substr(0, point));
  if (point < mantissa.size()) all += mantissa.substr(point + 1);
  int64_t whole = static_cast<int64_t>(point) + exponent;  // digits before the point
  if (whole < 0) all.insert(0, static_cast<size_t>(-whole), '0'), whole = 0;
  if (static_cast<size_t>(whole) > all.size()) all.append(static_cast<size_t>(whole) - all.size(), '0');
  out.whole = all.substr(0, static_cast<size_t>(whole));
  out.fraction = all.substr(static_cast<size_t>(whole));
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  if (out.whole.empty()) out.whole = "0";
  out.fraction.erase(out.fraction.find_last_not_of('0') + 1);
  if (is_zero(out)) out.negative = false;
  return out;
}

void all_numbers(Language& language) {
  const Expr more = repeat(digit('0', '9'), 0, Expr::kUnlimited);
  language.must(
      sequence({optional(literal("-")), choice({literal("0"), sequence({digit('1', '9'), more})}), any_fraction()}));
  no_negative_zero(language);
}

void whole_numbers(Language& language) {
  language.must(sequence({optional(literal("-")), natural(1, kIntegerDigits)}));
  no_negative_zero(language);
}

void decimal_numbers(Language& language, bool large) {
  std::vector<Expr> all;
  all.push_back(sequence({literal("0"), fraction(kExactDigits)}));
  for (size_t length = 1; length <= kExactDigits; ++length) {
    Expr whole = sequence({digit('1', '9'), digits(length - 1, static_cast<int>(length) - 1)});
    if (length == kExactDigits)
      all.push_back(std::move(whole));
    else
      all.push_back(sequence({std::move(whole), fraction(kExactDigits - length)}));
  }
  if (large) all.push_back(natural(kExactDigits, kIntegerDigits));
  language.must(sequence({optional(literal("-")), choice(std::move(all))}));
  no_negative_zero(language);
}

void at_least(Language& language, const Decimal& bound, bool open) {
  if (bound.negative)
    language.must_not(negative(above(bound, open)));
  else if (is_zero(bound) && !open)
    language.must(positive_sign());
  else
    language.must(above(bound, !open));
}

void at_most(Language& language, const Decimal& bound, bool open) {
  if (bound.negative)
    language.must(negative(above(bound, !open)));
  else
    language.must_not(above(bound, open));
}

void equal_to(Language& language, const Decimal& value, bool wanted) {
  const Expr size =
      value.fraction.empty()
          ? sequence(
                {literal(value.whole), optional(sequence({literal("."), repeat(literal("0"), 1, Expr::kUnlimited)}))})
          : sequence({literal(value.whole + "." + value.fraction), repeat(literal("0"), 0, Expr::kUnlimited)});
  const Expr expr = value.negative ? negative(size) : size;
  wanted ? language.must(expr) : language.must_not(expr);
}

// Of step = k / 10^d: the digits read so far modulo k, and how many of them came after the point; of k * 10^z, z zeros
// at the end.
void multiple_of(Language& language, const Decimal& step, bool wanted, const std::string& what) {
  std::string figures = step.whole + step.fraction;
  const size_t d = step.fraction.size();
  size_t z = 0;
  if (d == 0) {
    while (figures.size() > 1 && figures.back() == '0') figures.pop_back(), ++z;
  }
  figures.erase(0, figures.find_first_not_of('0'));
  uint64_t k = 0;
  std::from_chars(figures.data(), figures.data() + figures.size(), k);
  if (figures.size() > 6 || d > kExactDigits || k * (d + 1) > kMostStep)
    fail("unsupported", what, " ", step.text(), " has too many digits; a step of up to three digits is supported");
  const auto count = static_cast<uint32_t>(k);
  const uint32_t start = language.add(), end = language.add();
  const auto states = [&] {
    const uint32_t first = language.add();
    for (uint32_t r = 1; r < count; ++r) language.add();
    return first;
  };
  const auto digits_between = [&](uint32_t from, uint32_t to) {
    for (uint32_t r = 0; r < count; ++r) {
      for (uint32_t c = 0; c < 10; ++c) language.edge(from + r, {'0' + c, '0' + c}, to + (10 * r + c) % count);
    }
  };
  const uint32_t whole = states();
  language.move(start, whole);
  language.edge(start, {'-', '-'}, whole);
  digits_between(whole, whole);
  const uint32_t zeros = language.add();  // after the point, where no other digit may come
  language.edge(zeros, {'0', '0'}, zeros);
  language.move(zeros, end);
  if (z > 0) {
    uint32_t last = whole;
    for (size_t i = 0; i < z; ++i) {
      const uint32_t next = language.add();
      language.edge(last, {'0', '0'}, next);
      last = next;
    }
    language.move(last, end);
    language.edge(last, {'.', '.'}, zeros);
    const uint32_t zero = language.add();  // 0 itself
    language.edge(start, {'0', '0'}, zero);
    language.move(zero, end);
    language.edge(zero, {'.', '.'}, zeros);
  } else {
    uint64_t scale = 1;  // 10^(d - f) modulo k
    std::vector<uint64_t> scales(d + 1);
    for (size_t f = d + 1; f-- > 0; scale = scale * 10 % k) scales[f] = scale;
    uint32_t from = whole;
    for (size_t f = 0; f <= d; ++f) {
      for (uint32_t r = 0; r < count; ++r) {
        if (r * scales[f] % k == 0) language.move(from + r, end);
      }
      if (f == d) break;
      const uint32_t to = states();
      if (f == 0) {
        const uint32_t point = states();
        for (uint32_t r = 0; r < count; ++r) language.edge(whole + r, {'.', '.'}, point + r);
        digits_between(point, to);
      } else {
        digits_between(from, to);
      }
      from = to;
    }
    if (d == 0) language.edge(whole, {'.', '.'}, zeros);
    if (d > 0) language.move(from, zeros);
  }
  language.part(start, end, wanted);
}

}  // namespace qeng::grammar
