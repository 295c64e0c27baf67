// Decimal numbers between bounds, as text: for minimum and maximum of a JSON schema.
#pragma once
#include <cstdint>

#include "engine/grammar/expression.h"

namespace qeng::grammar {

constexpr int64_t kMostInteger = 999'999'999'999'999;  // 15 digits: exact in a double

// The integers from low to high, both within +-kMostInteger, without leading zeros; nothing() if there are none.
Expr integers(int64_t low, int64_t high);

// Decimal fractions (up to 15 digits after the point, no exponent) between whole numbers, which count unless `open`.
Expr decimals(int64_t low, bool open_low, int64_t high, bool open_high);

}  // namespace qeng::grammar
