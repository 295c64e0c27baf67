// q.add_column_squares, q.squared_error, q.count_bits: what quantizing needs to know, and one-bit training.
#include "bindings/lua.h"
#include "bindings/register.h"
#include "bindings/runtime.h"
#include "engine/quantize/measure.h"
#include "engine/quantize/one_bit.h"

namespace qeng {
namespace {
using lua::Call;

int add_squares(Call& call) {
  add_column_squares(*call.arg<TensorPtr>(1), *call.arg<TensorPtr>(2));
  return 0;
}

int error(Call& call) {
  const SquaredError sums = squared_error(call.arg<TensorPtr>(1), call.arg<TensorPtr>(2));
  return call.push(sums.error, sums.total);
}

int count(Call& call) {
  const auto x = call.arg<TensorPtr>(1);
  return call.push(call.has(2) ? count_differing_bits(*x, *call.arg<TensorPtr>(2)) : count_set_bits(*x));
}
}  // namespace

void register_measure(lua_State* L) {
  lua::functions(L, "",
                 {{"add_column_squares", lua::fn<add_squares>},
                  {"squared_error", lua::fn<error>},
                  {"count_bits", lua::fn<count>}});
}

}  // namespace qeng
