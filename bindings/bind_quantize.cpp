// Block formats: packing weights, and one-bit and ternary weights with a scale a row.
#include "bindings/register.h"
#include "bindings/runtime.h"
#include "engine/quantize/one_bit.h"
#include "engine/quantize/quantize.h"

namespace qeng {
namespace {

using lua::Call;
using lua::Options;

int pack(Call& call) {
  Options opt(call, 3, {"importance"});
  return call.push(quantize(call.arg<TensorPtr>(1), call.arg<DType>(2), opt.get<TensorPtr>("importance", nullptr)));
}

int join_scale(Call& call) {
  return call.push(join_row_scale(call.arg<TensorPtr>(1), call.arg<TensorPtr>(2), call.arg<DType>(3)));
}

int split_scale(Call& call) {
  const RowScaled parts = split_row_scale(call.arg<TensorPtr>(1));
  return call.push(parts.w, parts.scale);
}

}  // namespace

void register_quantize(lua_State* L) {
  lua::functions(L, "",
                 {{"quantize", lua::fn<pack>},
                  {"join_row_scale", lua::fn<join_scale>},
                  {"split_row_scale", lua::fn<split_scale>}});
}

}  // namespace qeng
