// Tensor:describe: what the values of a tensor are like. console/tables.lua prints it.
#include "bindings/register.h"
#include "bindings/runtime.h"
#include "engine/tensor/describe.h"

namespace qeng {
namespace {
using lua::set_field;

int describe_tensor(lua::Call& call) {
  const TensorPtr x = lua::self_tensor(call);
  const Description found = describe(x);
  lua_State* L = call.L;
  lua_newtable(L);
  set_field(L, "shape", Shape(x->view.shape, x->view.shape + x->view.rank));
  set_field(L, "dtype", dtype_name(x->view.dtype));
  set_field(L, "elements", found.elements);
  set_field(L, "zeros", found.zeros);
  set_field(L, "nan", found.nan);
  set_field(L, "inf", found.inf);
  set_field(L, "min", found.min);
  set_field(L, "max", found.max);
  set_field(L, "mean", found.mean);
  set_field(L, "std", found.std);
  lua_newtable(L);
  for (size_t i = 0; i < found.quantiles.size(); ++i) {
    lua_pushnumber(L, Description::kQuantiles[i]);
    lua_pushnumber(L, found.quantiles[i]);
    lua_rawset(L, -3);
  }
  lua_setfield(L, -2, "quantiles");
  return 1;
}
}  // namespace

void register_describe(lua_State* L) { lua::methods<Tensor>(L, {{"describe", lua::fn<describe_tensor>}}); }

}  // namespace qeng
