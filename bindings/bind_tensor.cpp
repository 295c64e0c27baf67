// Tensors: making, reading, copying.
#include <xxhash.h>

#include <algorithm>
#include <cmath>

#include "bindings/register.h"
#include "bindings/runtime.h"
#include "bindings/tensor_text.h"
#include "engine/autograd/expression.h"
#include "engine/stream/spilled_file.h"
#include "kernels/interleave.h"
#include "kernels/view_text.h"

namespace qeng {
namespace {

using lua::Call;
using lua::Options;

// ---------------------------------------------------------------- making

// Flattens a nested table; every level has to have the same length throughout.
void flatten(lua_State* L, int index, size_t level, Shape& shape, std::vector<double>& values) {
  if (lua_isnumber(L, index)) {
    if (level != shape.size()) fail("shape", "tensor: the nested tables have different depths");
    values.push_back(lua_tonumber(L, index));
    return;
  }
  if (!lua_istable(L, index)) fail("value", "tensor: number or table expected, got ", lua::type_text(L, index));
  luaL_checkstack(L, 2, "nested tensor");
  const int64_t length = static_cast<int64_t>(lua_objlen(L, index));
  if (level == shape.size()) {
    if (!values.empty() || level >= kMaxRank)
      fail("shape", "tensor: the nested tables have different depths, or more than ", kMaxRank);
    shape.push_back(length);
  } else if (shape[level] != length) {
    fail("shape", "tensor: a nested table has ", length, " elements where another has ", shape[level]);
  }
  for (int64_t i = 1; i <= length; ++i) {
    lua_rawgeti(L, index, static_cast<int>(i));
    flatten(L, lua_gettop(L), level + 1, shape, values);
    lua_pop(L, 1);
  }
}

int tensor(Call& call) {
  Shape shape;
  std::vector<double> values;
  flatten(call.L, 1, 0, shape, values);
  if (shape.empty()) shape = {1};
  return call.push(make_constant(device(), shape, call.arg<DType>(2, DType::f32), values));
}

int zeros(Call& call) {
  return call.push(make_zeros(device(), call.arg<Shape>(1), call.arg<DType>(2, DType::f32),
                              call.arg<std::string>(3, "activations")));
}

int empty(Call& call) {
  return call.push(make_tensor(device(), call.arg<Shape>(1), call.arg<DType>(2, DType::f32),
                               call.arg<std::string>(3, "activations")));
}

int randn(Call& call) {
  Options opt(call, 2, {"std", "seed", "subsequence", "dtype", "label"});
  TensorPtr x = make_tensor(device(), call.arg<Shape>(1), opt.get<DType>("dtype", DType::f32),
                            opt.get<std::string>("label", "activations"));
  fill_normal(*x, opt.get<double>("std", 1), opt.get<uint64_t>("seed", tape().seed()),
              opt.get<uint64_t>("subsequence", 0));
  return call.push(x);
}

int uniform(Call& call) {
  Options opt(call, 2, {"low", "high", "seed", "subsequence", "dtype", "label"});
  TensorPtr x = make_tensor(device(), call.arg<Shape>(1), opt.get<DType>("dtype", DType::f32),
                            opt.get<std::string>("label", "activations"));
  fill_uniform(*x, opt.get<double>("low", 0), opt.get<double>("high", 1), opt.get<uint64_t>("seed", tape().seed()),
               opt.get<uint64_t>("subsequence", 0));
  return call.push(x);
}

// ---------------------------------------------------------------- methods

Shape shape_of(const TensorPtr& x) { return Shape(x->view.shape, x->view.shape + x->view.rank); }

// What a pending tensor has as well.
TensorPtr self_as_it_is(Call& call) {
  try {
    return lua::pending_tensor(call.L, 1);
  } catch (const lua::Problem& problem) {
    fail("closed", call.name, ": ", problem.text);
  }
}
int shape(Call& call) { return call.push(shape_of(self_as_it_is(call))); }
int dtype(Call& call) { return call.push(self_as_it_is(call)->view.dtype); }
int elements(Call& call) { return call.push(self_as_it_is(call)->view.elements()); }
int bytes(Call& call) { return call.push(static_cast<int64_t>(self_as_it_is(call)->view.bytes())); }

// Appends row r of the leading dimension as a file has it, also where rows lie interleaved.
void append_row(std::vector<std::byte>& bytes, const TensorPtr& x, int64_t r) {
  const int64_t group = x->view.interleaved ? kInterleavedRows : 1;
  const TensorPtr rows = row_range(x, r / group * group, group);
  std::vector<std::byte> host(rows->view.bytes());
  read_bytes(*rows, host.data());
  const size_t size = host.size() / static_cast<size_t>(group);
  const std::byte* row = host.data() + static_cast<size_t>(r % group) * size;
  bytes.insert(bytes.end(), row, row + size);
}

int hash(Call& call) {
  const TensorPtr x = lua::self_tensor(call);
  const int64_t rows = x->view.rank > 0 ? x->view.shape[0] : 0, wanted = call.arg<int64_t>(1, 0);
  std::vector<std::byte> host;
  if (wanted > 0) {
    const int64_t some = std::min(wanted, rows);
    for (int64_t i = 0; i < some; ++i)
      append_row(host, x, some == rows ? i : i * (rows - 1) / std::max<int64_t>(some - 1, 1));
  } else {
    host.resize(x->view.bytes());
    read_bytes(*x, host.data());
  }
  drop_spilled(*x);
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(XXH3_64bits(host.data(), host.size())));
  return call.push(std::string(text));
}

int item(Call& call) {
  TensorPtr x = lua::self_tensor(call);
  if (x->view.elements() != 1) fail("shape", "item: the tensor is ", shape_text(x->view), ", expected one element");
  return call.push(to_host(*x)[0]);
}

void push_nested(lua_State* L, const Shape& sizes, size_t level, const std::vector<double>& values, size_t& at) {
  luaL_checkstack(L, 2, "nested tensor");
  lua_createtable(L, static_cast<int>(sizes[level]), 0);
  for (int64_t i = 1; i <= sizes[level]; ++i) {
    if (level + 1 == sizes.size())
      lua_pushnumber(L, values[at++]);
    else
      push_nested(L, sizes, level + 1, values, at);
    lua_rawseti(L, -2, static_cast<int>(i));
  }
}

int table(Call& call) {
  TensorPtr x = lua::self_tensor(call);
  const std::vector<double> values = to_host(*x);
  size_t at = 0;
  if (x->view.rank == 0) return call.push(values);
  push_nested(call.L, shape_of(x), 0, values, at);
  return 1;
}

int new_rows(Call& call) {
  Options opt(call, 4, {"dtype", "label"});
  const TensorPtr w = call.arg<TensorPtr>(1);
  return call.push(with_new_rows(w, call.arg<int64_t>(2), call.arg<int64_t>(3), opt.get<DType>("dtype", w->view.dtype),
                                 opt.get<std::string>("label", "weights")));
}
int rows(Call& call) {
  return call.push(row_range(lua::self_tensor(call), call.arg<int64_t>(1), call.arg<int64_t>(2)));
}

int copy(Call& call) {
  require_writable(*lua::self_tensor(call), "copy");
  const TensorPtr x = lua::self_tensor(call);
  copy_into(*x, *call.arg<TensorPtr>(1));
  tape_of(call, x).wrote(x);
  drop_spilled(*x);
  lua_settop(call.L, 1);
  return 1;
}

int fill(Call& call) {
  TensorPtr x = lua::self_tensor(call);
  require_writable(*x, "fill");
  fill(*x, call.arg<double>(1));
  tape_of(call, x).wrote(x);
  lua_settop(call.L, 1);
  return 1;
}

int clone(Call& call) {
  TensorPtr x = lua::self_tensor(call), y = make_like(*x, x->buffer->account);
  copy_into(*y, *x);
  return call.push(y);
}

int free(Call& call) {
  if (!lua::is_class(call.L, 1, "Tensor")) fail("value", "free is a method of Tensor: call it with a colon");
  lua::close_tensor(call.L, 1);
  return 0;
}

int requires_grad(Call& call) {
  TensorPtr x = lua::self_tensor(call);
  if (!call.has(1)) return call.push(x->requires_grad && !x->frozen);
  if (call.arg<bool>(1) && tape_of(call, x).flows(*x))
    fail("state", call.name, ": gradients flow through this tensor, ", shape_text(x->view),
         ", to those that it was computed from: take its :clone(), or make it in a function given to q.no_grad");
  set_requires_grad(x, call.arg<bool>(1), call.arg<DType>(2, x->grad ? x->grad->view.dtype : DType::f32));
  return call.push(x->requires_grad);
}

int grad(Call& call) { return call.push(lua::self_tensor(call)->grad); }

int label(Call& call) {
  TensorPtr x = lua::self_tensor(call);
  if (!call.has(1)) return call.push(x->label);
  x->label = call.arg<std::string>(1);
  lua_settop(call.L, 1);
  return 1;
}

// The pointer that tensor_view.lua wraps into a bounds-checked FFI view.
int address(Call& call) {
  TensorPtr x = lua::self_tensor(call);
  if (x->view.dtype != DType::f32 && x->view.dtype != DType::i32)
    fail("dtype", "view: the tensor is ", shape_text(x->view), ", expected f32 or i32");
  if (!x->device().backend().host_memory())
    fail("unsupported", "view: the tensor is on ", x->device().backend().name(),
         ", where the host has no view of it; use :table()");
  lua_pushlightuserdata(call.L, x->view.data);
  return 1;
}

int equals(Call& call) {
  const auto held = [&](int index) { return static_cast<TensorPtr*>(lua_touserdata(call.L, index))->get(); };
  return call.push(lua_rawequal(call.L, 1, 2) || (held(1) && held(1) == held(2)));
}

int text(Call& call) {
  const TensorPtr& held = *static_cast<TensorPtr*>(lua_touserdata(call.L, 1));
  if (!held) return call.push("Tensor (closed)");
  if (held->device().capturing() && held->pending) return call.push(shape_text(held->view));
  settled(held);
  if (!held->device().capturing()) return call.push(tensor_text(held));
  return call.push(shape_text(held->view) + (held->label.empty() ? "" : " " + held->label));
}

}  // namespace

void register_tensor(lua_State* L) {
  using namespace lua;
  functions(L, "",
            {{"tensor", fn<tensor>},
             {"zeros", fn<zeros>},
             {"empty", fn<empty>},
             {"randn", fn<randn>},
             {"uniform", fn<uniform>}});
  functions(L, "adapters", {{"new_rows", fn<new_rows>}});
  methods<Tensor>(L, {{"shape", fn<shape>},
                      {"dtype", fn<dtype>},
                      {"elements", fn<elements>},
                      {"bytes", fn<bytes>},
                      {"hash", fn<hash>},
                      {"item", fn<item>},
                      {"table", fn<table>},
                      {"rows", fn<rows>},
                      {"copy", fn<copy>},
                      {"fill", fn<fill>},
                      {"clone", fn<clone>},
                      {"free", fn<free>},
                      {"requires_grad", fn<requires_grad>},
                      {"grad", fn<grad>},
                      {"label", fn<label>},
                      {"_address", fn<address>},
                      {"__tostring", fn<text>},
                      {"__eq", fn<equals>}});
}

}  // namespace qeng
