// Block formats: packing weights, and what quantizing needs to know.
#include "bindings/register.h"
#include "bindings/runtime.h"
#include "engine/quantize/measure.h"
#include "engine/quantize/quantize.h"

namespace qeng {
namespace {

using lua::Call;
using lua::Options;

int pack(Call& call) {
  Options opt(call, 3, {"importance"});
  return call.push(quantize(call.arg<TensorPtr>(1), call.arg<DType>(2), opt.get<TensorPtr>("importance", nullptr)));
}

int add_squares(Call& call) {
  add_column_squares(*call.arg<TensorPtr>(1), *call.arg<TensorPtr>(2));
  return 0;
}

int error(Call& call) {
  const SquaredError sums = squared_error(call.arg<TensorPtr>(1), call.arg<TensorPtr>(2));
  return call.push(sums.error, sums.total);
}

}  // namespace

void register_quantize(lua_State* L) {
  lua::functions(L, "", {{"quantize", lua::fn<pack>}});
  lua::functions(L, "quant", {{"add_column_squares", lua::fn<add_squares>}, {"squared_error", lua::fn<error>}});
}

}  // namespace qeng
