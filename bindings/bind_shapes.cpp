// Tensors in another order, and products of matrices. Dimensions and positions count from 0 here; qeng.shapes, in Lua,
// has what is made of these, from 1 and from the end.
#include <algorithm>

#include "bindings/register.h"
#include "bindings/runtime.h"
#include "engine/autograd/functions.h"
#include "kernels/view_text.h"

namespace qeng {
namespace {

using lua::Call;

int dimension(const Call& call, int argument, const TensorPtr& x) {
  const int d = call.arg<int>(argument);
  if (d < 0 || d >= x->view.rank) fail("shape", "there is no dimension ", d + 1, " in ", shape_text(x->view));
  return d;
}

int permute(Call& call) {
  const TensorPtr x = lua::self_tensor(call);
  const auto dims = call.arg<std::vector<int>>(1);
  std::vector<int> sorted = dims;
  std::sort(sorted.begin(), sorted.end());
  bool all = static_cast<int>(dims.size()) == x->view.rank;
  for (int d = 0; all && d < x->view.rank; ++d) all = sorted[static_cast<size_t>(d)] == d;
  if (!all) fail("shape", "permute of ", shape_text(x->view), ": expected each of its dimensions once");
  return call.push(permute(tape_of(call, x), x, dims));
}

// (dimension, first, step, count)
int slice(Call& call) {
  const TensorPtr x = lua::self_tensor(call);
  const int dim = dimension(call, 1, x);
  const auto first = call.arg<int64_t>(2), step = call.arg<int64_t>(3), count = call.arg<int64_t>(4);
  const int64_t size = x->view.shape[dim];
  const auto inside = [&](int64_t at) { return at >= 0 && at < size; };
  if (count < 0 || (count > 0 && !(inside(first) && inside(first + (count - 1) * step))))
    fail("shape", "slice of ", shape_text(x->view), " is outside dimension ", dim + 1);
  return call.push(slice(tape_of(call, x), x, dim, count ? first : 0, step, count));
}

int expand(Call& call) {
  const TensorPtr x = lua::self_tensor(call);
  const auto shape = call.arg<Shape>(1);
  if (shape.size() > kMaxRank) fail("shape", "expand: more than ", kMaxRank, " dimensions");
  return call.push(expand(tape_of(call, x), x, shape));
}

int concat(Call& call) {
  const auto parts = call.arg<std::vector<TensorPtr>>(1);
  if (parts.empty()) fail("value", "concat: there are no tensors");
  const int dim = dimension(call, 2, parts[0]);
  for (const TensorPtr& part : parts) device_of(call, parts[0], part);
  return call.push(concat(tape_of(call, parts[0]), parts, dim));
}

int gather(Call& call) {
  const TensorPtr x = lua::self_tensor(call), index = call.arg<TensorPtr>(2);
  return call.push(gather(tape_of(call, x, index), x, index, dimension(call, 1, x)));
}

int scatter_add(Call& call) {
  const TensorPtr x = lua::self_tensor(call), index = call.arg<TensorPtr>(2), source = call.arg<TensorPtr>(3);
  return call.push(scatter_add(tape_of(call, x, index, source), x, dimension(call, 1, x), index, source));
}

int sort(Call& call) {
  const TensorPtr x = lua::self_tensor(call);
  const auto k = call.arg<int64_t>(1);
  if (k < 0 || k > x->view.columns())
    fail("shape", "there are no ", k, " elements in each row of ", shape_text(x->view));
  const Sorted result = sort(tape_of(call, x), x, k, call.arg<bool>(2));
  return call.push(result.values, result.index);
}

int cumulative_sum(Call& call) {
  const TensorPtr x = lua::self_tensor(call);
  return call.push(cumulative_sum(tape_of(call, x), x, call.arg<bool>(1, false)));
}

int matmul(Call& call) {
  const TensorPtr a = lua::self_tensor(call), b = call.arg<TensorPtr>(1);
  return call.push(matmul(tape_of(call, a, b), a, b, call.arg<bool>(2, false), call.arg<bool>(3, false)));
}

// x[i] for a number, else the method. Upvalue 1: the methods.
int method_or_row(lua_State* L) {
  const bool number = lua_type(L, 2) == LUA_TNUMBER;
  if (!number) return lua_rawget(L, lua_upvalueindex(1)), 1;
  lua_getfield(L, lua_upvalueindex(1), "_at_first");
  lua_insert(L, 1);
  lua_call(L, 2, 1);
  return 1;
}

// x[i] = values: x[i]:set(values).
int set_row(lua_State* L) {
  if (lua_type(L, 2) != LUA_TNUMBER)
    lua::raise(L, "value", "a tensor has no field to set but positions of its first dimension: x[i] = values");
  lua_getfield(L, lua_upvalueindex(1), "_at_first");
  lua_pushvalue(L, 1), lua_pushvalue(L, 2);
  lua_call(L, 2, 1);
  lua_getfield(L, -1, "set");
  lua_insert(L, -2);
  lua_pushvalue(L, 3);
  lua_call(L, 2, 0);
  return 0;
}

}  // namespace

void register_shapes(lua_State* L) {
  using namespace lua;
  functions(L, "", {{"_concat", fn<concat>}});
  methods<Tensor>(L, {{"_permute", fn<permute>},
                      {"_slice", fn<slice>},
                      {"_expand", fn<expand>},
                      {"_gather", fn<gather>},
                      {"_scatter_add", fn<scatter_add>},
                      {"_sort", fn<sort>},
                      {"_cumulative_sum", fn<cumulative_sum>},
                      {"_matmul", fn<matmul>}});
  push_class(L, ClassName<Tensor>::value, &collect<Tensor>);
  for (const auto& [name, function] : {std::pair{"__index", &method_or_row}, std::pair{"__newindex", &set_row}}) {
    lua_getfield(L, -1, "__methods");
    lua_pushcclosure(L, function, 1);
    lua_setfield(L, -2, name);
  }
  lua_pop(L, 1);
}

}  // namespace qeng
